//! The lines of the fields of a YAML document, for error messages.

use saphyr_parser::{Event, Parser};

/// The paths and lines of all nodes of a document.
#[derive(Debug, Default)]
pub(super) struct Nodes(Vec<(String, usize)>);

/// An open list or mapping during the parsing.
enum Parent {
    /// A list, with the index of the next item.
    List(usize),
    /// A mapping, with the key and line of the next value; `None` if a key comes next.
    Mapping(Option<(String, usize)>),
}

impl Nodes {
    /// Returns the nodes of a document, up to its first syntax error.
    pub(super) fn of(document: &str) -> Self {
        let mut nodes = Self::default();
        let mut path: Vec<String> = vec![String::new()];
        let mut parents: Vec<Parent> = Vec::new();
        let mut parser = Parser::new_from_str(document);
        while let Some(Ok((event, span))) = parser.next_event() {
            let opened = match event {
                Event::MappingStart(..) => Some(Parent::Mapping(None)),
                Event::SequenceStart(..) => Some(Parent::List(0)),
                Event::Scalar(key, ..) if matches!(parents.last(), Some(Parent::Mapping(None))) => {
                    if let Some(parent) = parents.last_mut() {
                        *parent = Parent::Mapping(Some((key.into_owned(), span.start.line())));
                    }
                    continue;
                }
                Event::Scalar(..) | Event::Alias(_) => None,
                Event::MappingEnd | Event::SequenceEnd => {
                    parents.pop();
                    path.pop();
                    continue;
                }
                _ => continue,
            };
            let base = path.last().map_or("", String::as_str);
            let (here, line) = match parents.last_mut() {
                Some(Parent::List(index)) => {
                    *index += 1;
                    (format!("{base}[{}]", *index - 1), span.start.line())
                }
                Some(Parent::Mapping(key)) => {
                    let (key, line) = key.take().unwrap_or_default();
                    (if base.is_empty() { key } else { format!("{base}.{key}") }, line)
                }
                None => (String::new(), span.start.line()),
            };
            nodes.0.push((here.clone(), line));
            if let Some(parent) = opened {
                parents.push(parent);
                path.push(here);
            }
        }
        nodes
    }

    /// Returns the line of a field, from 1. If the document does not have the field, the line of its nearest parent.
    pub(super) fn line(&self, field: &str) -> usize {
        let mut field = field;
        loop {
            if let Some((_, line)) = self.0.iter().find(|(path, _)| path == field) {
                return *line;
            }
            match field.rfind(['.', '[']) {
                Some(end) => field = &field[..end],
                None => return self.0.first().map_or(1, |(_, line)| *line),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_fields_are_found() {
        let nodes = Nodes::of("# c\na:\n  b: 1\n  c:\n    - x\n    -\n      d: {e: 2,\n        f: 3}\n'g.h': 1\n");
        for (field, line) in [
            ("a", 2),
            ("a.b", 3),
            ("a.c", 4),
            ("a.c[0]", 5),
            ("a.c[1].d.e", 7),
            ("a.c[1].d.f", 8),
            ("g.h", 9),
            ("a.nothing", 2),
            ("a.c[7].x", 4),
            ("nothing", 2),
        ] {
            assert_eq!(nodes.line(field), line, "{field}");
        }
        let json = Nodes::of("{\n \"a\": [\n  {\"b\": 1}]}");
        assert_eq!(json.line("a[0].b"), 3);
    }
}
