//! Where the fields of a YAML document are, so that an error can name the line.

use saphyr_parser::{Event, Parser};

/// The paths of all nodes of a document and their lines.
#[derive(Debug, Default)]
pub(super) struct Nodes(Vec<(String, usize)>);

/// A list or a mapping that is open.
enum Parent {
    List(usize),
    /// The key whose value comes next.
    Mapping(Option<(String, usize)>),
}

impl Nodes {
    /// Finds the nodes as far as the document can be read.
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

    /// The line of the field, or of the nearest one around it; counted from 1.
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
    fn fields_are_found_where_they_stand() {
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
