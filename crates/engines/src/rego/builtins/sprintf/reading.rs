//! What stands between `%` and a verb, as Go reads it: flags, a width and a precision, which may come from the values, and a
//! value's place.

use std::iter::Peekable;
use std::str::Chars;

use super::argument::Argument;
use super::directive::{Directive, MAX_WIDTH};

/// How far away the end of a place may be.
const LONGEST_PLACE: usize = 32;

/// A format that is read, and the values that it takes.
pub(super) struct Reading<'a> {
    pub rest: Peekable<Chars<'a>>,
    pub arguments: &'a [Argument],
    /// The value that the next verb takes.
    pub next: usize,
    /// Whether a place was given: then it does not matter which values are left.
    pub reordered: bool,
}

impl Reading<'_> {
    pub(super) fn directive(&mut self, out: &mut String) -> Directive {
        let mut directive = Directive::default();
        while let Some(flag) = self.rest.next_if(|character| "+-# 0".contains(*character)) {
            directive.flags.push(flag);
        }
        let mut after_place = self.place(&mut directive);
        if self.rest.next_if_eq(&'*').is_some() {
            match self.number() {
                Some(width) => {
                    directive.flags.push_str(if width < 0 { "-" } else { "" });
                    directive.width = Some(limited(width));
                }
                None => *out += "%!(BADWIDTH)",
            }
            after_place = false;
        } else {
            directive.width = self.digits();
            directive.misplaced |= after_place && directive.width.is_some();
        }
        if self.rest.next_if_eq(&'.').is_some() {
            directive.misplaced |= after_place;
            after_place = self.place(&mut directive);
            if self.rest.next_if_eq(&'*').is_some() {
                match self.number().filter(|precision| *precision >= 0) {
                    Some(precision) => directive.precision = Some(limited(precision)),
                    None => *out += "%!(BADPREC)",
                }
                after_place = false;
            } else {
                directive.precision = Some(self.digits().unwrap_or(0));
            }
        }
        if !after_place {
            self.place(&mut directive);
        }
        directive
    }

    /// `[2]`: the value to take, counted from one. Whether there was one.
    fn place(&mut self, directive: &mut Directive) -> bool {
        if self.rest.next_if_eq(&'[').is_none() {
            return false;
        }
        self.reordered = true;
        let inside: String = self.rest.clone().take(LONGEST_PLACE).take_while(|character| *character != ']').collect();
        let length = inside.chars().count();
        if self.rest.clone().nth(length) == Some(']') {
            self.rest.nth(length);
            if let Some(place) = inside.parse::<usize>().ok().filter(|_| !inside.starts_with('+')) {
                match place.checked_sub(1).filter(|place| *place < self.arguments.len()) {
                    Some(place) => self.next = place,
                    None => directive.misplaced = true,
                }
                return true;
            }
        }
        directive.misplaced = true;
        false
    }

    /// A width or precision from the values.
    fn number(&mut self) -> Option<i64> {
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
