//! `sprintf` with another number of values than its format asks for is undefined in regorus, where OPA
//! writes `%!v(MISSING)`: a message, and with it a violation, would be lost.

/// How many values a format takes. None when it picks them by index or takes widths from them.
pub(super) fn verbs(format: &str) -> Option<usize> {
    let mut verbs = 0;
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            continue;
        }
        // Flags, width and precision, then the verb.
        match characters.find(|character| !matches!(character, '+' | '-' | '#' | ' ' | '.' | '0'..='9')) {
            Some('%') => {}
            Some('[' | '*') => return None,
            _ => verbs += 1,
        }
    }
    Some(verbs)
}

#[cfg(test)]
mod tests {
    use super::verbs;

    #[test]
    fn verbs_are_counted_as_fmt_counts_them() {
        for (format, expected) in [
            ("", Some(0)),
            ("plain", Some(0)),
            ("100%%", Some(0)),
            ("%v and %s", Some(2)),
            ("%5.2f%%%d", Some(2)),
            ("%-10v|%+v|%#v|% d", Some(4)),
            ("%[1]v", None),
            ("%*d", None),
            ("dangling %", Some(1)),
        ] {
            assert_eq!(verbs(format), expected, "{format}");
        }
    }
}
