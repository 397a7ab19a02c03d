//! Parses the part of a directive between `%` and the verb, like Go: flags, a width and a precision, which may be arguments, and
//! the index of an argument.

use std::iter::Peekable;
use std::str::Chars;

use super::argument::Argument;
use super::directive::{Directive, MAX_WIDTH};

/// The longest text of an argument index, in characters.
const MAX_INDEX_LENGTH: usize = 32;

/// A format string that is being parsed, and its arguments.
pub(super) struct FormatParser<'a> {
    pub rest: Peekable<Chars<'a>>,
    pub arguments: &'a [Argument],
    /// The index of the argument that the next verb takes.
    pub next: usize,
    /// True after a directive had an argument index: then, as in Go, unused arguments are not an error.
    pub reordered: bool,
}

impl FormatParser<'_> {
    /// Parses a directive after its `%`. Appends Go's error texts for a bad width or precision to `out`.
    pub(super) fn directive(&mut self, out: &mut String) -> Directive {
        let mut directive = Directive::default();
        while let Some(flag) = self.rest.next_if(|character| "+-# 0".contains(*character)) {
            directive.flags.push(flag);
        }
        let mut after_index = self.argument_index(&mut directive);
        if self.rest.next_if_eq(&'*').is_some() {
            match self.number_argument() {
                Some(width) => {
                    directive.flags.push_str(if width < 0 { "-" } else { "" });
                    directive.width = Some(limited(width));
                }
                None => *out += "%!(BADWIDTH)",
            }
            after_index = false;
        } else {
            directive.width = self.digits();
            directive.has_bad_index |= after_index && directive.width.is_some();
        }
        if self.rest.next_if_eq(&'.').is_some() {
            directive.has_bad_index |= after_index;
            after_index = self.argument_index(&mut directive);
            if self.rest.next_if_eq(&'*').is_some() {
                match self.number_argument().filter(|precision| *precision >= 0) {
                    Some(precision) => directive.precision = Some(limited(precision)),
                    None => *out += "%!(BADPREC)",
                }
                after_index = false;
            } else {
                directive.precision = Some(self.digits().unwrap_or(0));
            }
        }
        if !after_index {
            self.argument_index(&mut directive);
        }
        directive
    }

    /// Parses an argument index such as `[2]`, counted from one. Returns true if there was an index.
    fn argument_index(&mut self, directive: &mut Directive) -> bool {
        if self.rest.next_if_eq(&'[').is_none() {
            return false;
        }
        self.reordered = true;
        let inside: String =
            self.rest.clone().take(MAX_INDEX_LENGTH).take_while(|character| *character != ']').collect();
        let length = inside.chars().count();
        if self.rest.clone().nth(length) == Some(']') {
            self.rest.nth(length);
            if let Some(number) = inside.parse::<usize>().ok().filter(|_| !inside.starts_with('+')) {
                match number.checked_sub(1).filter(|index| *index < self.arguments.len()) {
                    Some(index) => self.next = index,
                    None => directive.has_bad_index = true,
                }
                return true;
            }
        }
        directive.has_bad_index = true;
        false
    }

    /// Takes a width or precision from the arguments; `None` if the argument is missing or not an integer.
    fn number_argument(&mut self) -> Option<i64> {
        let argument = self.arguments.get(self.next)?;
        self.next += 1;
        match argument {
            Argument::Integer(digits) => digits.parse().ok(),
            _ => None,
        }
    }

    fn digits(&mut self) -> Option<usize> {
        let mut number = None;
        while let Some(digit) = self.rest.peek().and_then(|character| character.to_digit(10)) {
            self.rest.next();
            number = Some((number.unwrap_or(0) * 10 + digit as usize).min(MAX_WIDTH));
        }
        number
    }
}

fn limited(number: i64) -> usize {
    usize::try_from(number.unsigned_abs()).unwrap_or(MAX_WIDTH).min(MAX_WIDTH)
}
