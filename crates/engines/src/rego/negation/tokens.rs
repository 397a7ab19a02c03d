//! The tokens of a source before it is rewritten: the positions of its strings, and the words that the result must preserve.

use std::collections::{BTreeMap, BTreeSet};

use regorus::unstable::{Lexer, Source, Span, TokenKind};

use crate::CompileError;
use crate::rego::bounds::MAX_COLUMN;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Word {
    String,
    RawString,
    Name,
    Number,
}

#[derive(Default)]
pub(super) struct Tokens {
    /// The offsets at which strings begin and end, without their quotes.
    starts: BTreeSet<usize>,
    ends: BTreeSet<usize>,
    /// The number of occurrences of each word.
    words: BTreeMap<(Word, String), usize>,
}

impl Tokens {
    pub(super) fn of(source: &Source) -> Result<Self, CompileError> {
        let mut lexer = Lexer::new(source);
        lexer.set_max_col(MAX_COLUMN);
        let mut tokens = Self::default();
        loop {
            let token =
                lexer.next_token().map_err(|error| CompileError::Invalid(error.to_string().trim().to_owned()))?;
            let word = match token.0 {
                TokenKind::Eof => return Ok(tokens),
                TokenKind::String => Word::String,
                TokenKind::RawString => Word::RawString,
                TokenKind::Ident => Word::Name,
                TokenKind::Number => Word::Number,
                TokenKind::Symbol => continue,
            };
            if matches!(word, Word::String | Word::RawString) {
                tokens.starts.insert(token.1.start as usize);
                tokens.ends.insert(token.1.end as usize);
            }
            *tokens.words.entry((word, token.1.text().to_owned())).or_default() += 1;
        }
    }

    /// Returns the offsets of a span. regorus omits the quotes of a string, also if an expression begins or ends with a string:
    /// the range includes them.
    pub(super) fn range(&self, span: &Span) -> (usize, usize) {
        let (start, end) = (span.start as usize, span.end as usize);
        (start - usize::from(self.starts.contains(&start)), end + usize::from(self.ends.contains(&end)))
    }

    /// Returns true if a text contains all of these words, and no others except names that begin with the prefix.
    pub(super) fn are_preserved_in(&self, text: &str, prefix: &str) -> Result<bool, CompileError> {
        let source = Source::from_contents("rewritten".into(), text.to_owned())
            .map_err(|error| CompileError::Invalid(error.to_string().trim().to_owned()))?;
        // An edit that cuts a string may leave a string without an end.
        let Ok(rewritten) = Self::of(&source) else { return Ok(false) };
        let all_are_there =
            self.words.iter().all(|(word, times)| rewritten.words.get(word).is_some_and(|there| there >= times));
        let is_new = |(word, text): &(Word, String)| *word == Word::Name && text.starts_with(prefix);
        Ok(all_are_there && rewritten.words.keys().all(|word| self.words.contains_key(word) || is_new(word)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edit_that_cuts_a_string_is_detected() {
        let source = Source::from_contents("p".into(), "not bad(input.k == \"Pod\")".into()).unwrap();
        let tokens = Tokens::of(&source).unwrap();
        for (text, preserved) in [
            ("n__1 := input.k; n__2 := (n__1 == \"Pod\"); not bad(n__2)", true),
            ("n__1 := input.k; n__2 := (n__1 == \"Pod); not bad(n__2\")", false),
            ("n__1 := input.k; n__2 := (n__1 == \"Pod); not bad(n__2)", false),
            ("n__1 := input.k; n__2 := (n__1 == \"Pod\"); bad(n__2)", false),
            ("n__1 := input.k; n__2 := (n__1 == `Pod`); not bad(n__2)", false),
            ("n__1 := input.k; n__2 := (n__1 == \"Pod\"); not worse(n__2); bad", false),
        ] {
            assert_eq!(tokens.are_preserved_in(text, "n__"), Ok(preserved), "{text}");
        }
    }
}
