//! `sprintf` like in OPA, which uses Go's. regorus' implementation is undefined for widths, for too many or too few values, and
//! for values of an unexpected type. Then the message and its violation would be lost.
//!
//! OPA passes integers, floats and strings to Go. All other values are passed as strings in Rego's notation.

mod argument;
mod directive;
mod parser;

use std::fmt::Write as _;

use regorus::Value;

use super::limits::MAX_TEXT;
use super::size::serialized_size;
use argument::Argument;
use parser::FormatParser;

pub(super) fn sprintf(values: &[Value]) -> Result<Value, String> {
    let [Value::String(format), Value::Array(items)] = values else {
        return Err("it takes a string and an array".into());
    };
    // All arguments are serialized before the format is read, with shared parts once for each occurrence.
    if serialized_size(&values[1], MAX_TEXT, 0, 0) > MAX_TEXT {
        return Err("the arguments are too long".into());
    }
    let arguments = items.iter().map(Argument::new).collect::<Result<Vec<_>, _>>()?;
    let mut out = String::new();
    let mut parser = FormatParser { rest: format.chars().peekable(), arguments: &arguments, next: 0, reordered: false };
    while let Some(character) = parser.rest.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let directive = parser.directive(&mut out);
        match (parser.rest.next(), arguments.get(parser.next)) {
            (None, _) => out += "%!(NOVERB)",
            (Some('%'), _) => out.push('%'),
            (Some(verb), _) if directive.has_bad_index => _ = write!(out, "%!{verb}(BADINDEX)"),
            (Some(verb), None) => _ = write!(out, "%!{verb}(MISSING)"),
            (Some(verb), Some(argument)) => {
                parser.next += 1;
                out += &directive.pad(&directive.format(verb, argument), argument);
            }
        }
        if out.len() > MAX_TEXT {
            return Err("the result is too long".into());
        }
    }
    if let Some(extra @ [_, ..]) = arguments.get(parser.next..).filter(|_| !parser.reordered) {
        let extra: Vec<String> = extra.iter().map(Argument::with_type).collect();
        _ = write!(out, "%!(EXTRA {})", extra.join(", "));
    }
    Ok(out.into())
}

#[cfg(test)]
mod tests {
    use super::directive::MAX_WIDTH;
    use super::*;

    fn formatted(format: &str, values: &str) -> String {
        let values = crate::rego::value::read(values).unwrap();
        match sprintf(&[format.into(), values]) {
            Ok(Value::String(text)) => text.to_string(),
            other => panic!("{format}: {other:?}"),
        }
    }

    #[test]
    fn formats_give_the_same_text_as_in_go() {
        for (format, values, expected) in [
            ("", "[]", ""),
            ("100%% of %v", "[7]", "100% of 7"),
            ("%v|%s|%d", r#"["a", "b", 3]"#, "a|b|3"),
            ("%.2f|%8.3f|%f", "[3.14159, 2.5, 4]", "3.14|   2.500|4.000000"),
            ("%5.2f|%-8.1f|%08.2f", "[1.005, 1.5, -1.5]", " 1.00|1.5     |-0001.50"),
            ("%5d|%-5d|%05d|%+d|% d", "[42, 42, -42, 42, 42]", "   42|42   |-0042|+42| 42"),
            ("%10s|%-10s|%.2s|%q", r#"["ab", "ab", "abc", "a\"b"]"#, "        ab|ab        |ab|\"a\\\"b\""),
            ("%x|%X|%#x|%o|%b|%x", r#"[255, 255, 255, 8, 5, "hi"]"#, "ff|FF|0xff|10|101|6869"),
            ("%c|%U|%q", "[65, 65, 65]", "A|U+0041|'A'"),
            ("%e|%g|%v|%v|%.3g", "[1234.5, 1e-7, 1.5, 1e300, 1234.5]", "1.234500e+03|1e-07|1.5|1e+300|1.23e+03"),
            ("%T %T %T %T", r#"["a", 1, 1.5, []]"#, "string int64 float64 string"),
            ("%v %v %v %#v", r#"[{"a": [1, "b"]}, null, true, "x"]"#, r#"{"a": [1, "b"]} null true "x""#),
            ("%v", "[9007199254740993]", "9007199254740993"),
            ("%v and %s", "[1]", "1 and %!s(MISSING)"),
            ("none", r#"[1, "a"]"#, "none%!(EXTRA int64=1, string=a)"),
            (
                "%d|%d|%t|%s|%z",
                r#"["x", 1.5, true, 5, 5]"#,
                "%!d(string=x)|%!d(float64=1.5)|%!t(string=true)|%!s(int64=5)|%!z(int64=5)",
            ),
            ("dangling %", "[]", "dangling %!(NOVERB)"),
            ("%-3", "[]", "%!(NOVERB)"),
            ("%[2]s %[1]s|%[1]s %s", r#"["a", "b"]"#, "b a|a b"),
            ("%[3]s|%[x]s|%[1]5d|%[1", "[1, 2]", "%!s(BADINDEX)|%!s(BADINDEX)|%!d(BADINDEX)|%!(NOVERB)"),
            ("%*d|%-*d|%*d|%.*f", "[3, 1, 3, 1, -3, 1, 2, 1.005]", "  1|1  |1  |1.00"),
            ("%*d|%[1]*d", r#"["a", 1]"#, "%!(BADWIDTH)1|%!(BADWIDTH)1"),
            ("%#q %#v", r#"["a", "b"]"#, r#"`a` "b""#),
        ] {
            assert_eq!(formatted(format, values), expected, "{format}");
        }
        assert_eq!(formatted("%99999999999d", "[1]").len(), MAX_WIDTH);
        assert_eq!(formatted("%.99999999999f", "[1.5]").len(), MAX_WIDTH + 2);
    }
}
