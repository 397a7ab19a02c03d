//! The tokens of a source that is cut and spliced: where its strings are, and what must still be there afterwards.

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
    /// Where strings begin and end, without their quotes.
    starts: BTreeSet<usize>,
    ends: BTreeSet<usize>,
    /// How often each word is there.
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

    /// What a span covers. regorus leaves out the quotes of a string, also where an expression begins or ends with one.
    pub(super) fn range(&self, span: &Span) -> (usize, usize) {
        let (start, end) = (span.start as usize, span.end as usize);
        (start - usize::from(self.starts.contains(&start)), end + usize::from(self.ends.contains(&end)))
    }

    /// Whether a text has all of these words, and no others than names that begin with the prefix.
    pub(super) fn are_kept_in(&self, text: &str, prefix: &str) -> Result<bool, CompileError> {
        let source = Source::from_contents("rewritten".into(), text.to_owned())
            .map_err(|error| CompileError::Invalid(error.to_string().trim().to_owned()))?;
        // A cut through a string may leave none that ends.
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
    fn a_cut_through_a_string_is_seen() {
        let source = Source::from_contents("p".into(), "not bad(input.k == \"Pod\")".into()).unwrap();
        let tokens = Tokens::of(&source).unwrap();
        for (text, kept) in [
            ("n__1 := input.k; n__2 := (n__1 == \"Pod\"); not bad(n__2)", true),
            ("n__1 := input.k; n__2 := (n__1 == \"Pod); not bad(n__2\")", false),
            ("n__1 := input.k; n__2 := (n__1 == \"Pod); not bad(n__2)", false),
            ("n__1 := input.k; n__2 := (n__1 == \"Pod\"); bad(n__2)", false),
            ("n__1 := input.k; n__2 := (n__1 == `Pod`); not bad(n__2)", false),
            ("n__1 := input.k; n__2 := (n__1 == \"Pod\"); not worse(n__2); bad", false),
        ] {
            assert_eq!(tokens.are_kept_in(text, "n__"), Ok(kept), "{text}");
        }
    }
}
