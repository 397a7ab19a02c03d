//! Tables in the style of kubectl: columns without borders, which are easy to copy. Only the text of the last column is broken
//! into lines, so that names stay whole.

use anstyle::Style;

use super::page::paragraph;
use super::style::{DIM, PLAIN, paint};
use super::text::{printable, width, wrap};

/// The number of spaces between two columns.
const GAP: usize = 2;
/// The smallest width of the last column. If less is left, its text goes below the row.
const MIN_LAST_WIDTH: usize = 24;
/// The indent of a last column below its row.
const INDENT: &str = "    ";

#[derive(Clone, Debug)]
pub(super) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    pub(super) fn new(text: impl Into<String>, style: Style) -> Self {
        let text: String = text.into();
        Self { text: printable(&text).into_owned(), style }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(text, PLAIN)
    }
}

#[derive(Debug)]
pub(super) struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub(super) fn new(header: &[&'static str]) -> Self {
        Self { header: header.to_vec(), rows: Vec::new() }
    }

    /// Adds a row with one cell for each column.
    pub(super) fn row(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.header.len());
        self.rows.push(cells);
    }

    /// Renders the table for a terminal of this width, without empty columns.
    pub(super) fn render(mut self, columns: Option<usize>) -> String {
        self.drop_empty();
        let Some(last) = self.header.len().checked_sub(1) else { return String::new() };
        let widths: Vec<_> = (0..last).map(|column| self.width(column)).collect();
        let used = widths.iter().map(|width| width + GAP).sum::<usize>();
        let available = columns.map_or(usize::MAX, |columns| columns.saturating_sub(used));
        let is_prose = self.width(last) >= MIN_LAST_WIDTH;
        let is_below =
            is_prose && self.width(last) > available && available < self.widest_word(last).max(MIN_LAST_WIDTH);
        let available = if is_prose { available } else { usize::MAX };
        let mut page = String::new();
        let header: Vec<_> = self.header.iter().map(|name| Cell::new(*name, DIM)).collect();
        for row in std::iter::once(&header).chain(&self.rows) {
            let is_header = std::ptr::eq(row, &raw const header);
            let mut line = String::new();
            let mut padding = 0;
            for (cell, column) in row[..last].iter().zip(&widths) {
                line.push_str(&" ".repeat(padding));
                line.push_str(&paint(cell.style, &cell.text));
                padding = column + GAP - width(&cell.text);
            }
            let cell = &row[last];
            if !is_below && !cell.text.is_empty() {
                line.push_str(&" ".repeat(padding));
                for (number, part) in wrap(&cell.text, available, available).iter().enumerate() {
                    if number > 0 {
                        line.push('\n');
                        line.push_str(&" ".repeat(used));
                    }
                    line.push_str(&paint(cell.style, part));
                }
            }
            page.push_str(&line);
            page.push('\n');
            if is_below && !is_header && !cell.text.is_empty() {
                page.push_str(INDENT);
                page.push_str(&paragraph(&cell.text, columns, INDENT.len(), INDENT, cell.style));
            }
        }
        page
    }

    fn drop_empty(&mut self) {
        let has_text: Vec<_> =
            (0..self.header.len()).map(|column| self.rows.iter().any(|row| !row[column].text.is_empty())).collect();
        let mut keep = has_text.iter();
        self.header.retain(|_| *keep.next().unwrap_or(&true));
        for row in &mut self.rows {
            let mut keep = has_text.iter();
            row.retain(|_| *keep.next().unwrap_or(&true));
        }
    }

    fn widest_word(&self, column: usize) -> usize {
        let words = self.rows.iter().flat_map(|row| row[column].text.split_whitespace().map(width));
        words.max().unwrap_or_default()
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().flat_map(|row| row[column].text.lines().map(width));
        cells.chain([width(self.header[column])]).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::plain;
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&["NAME", "EMPTY", "READY", "MESSAGE"]);
        table.row(vec!["one".into(), "".into(), "True".into(), "".into()]);
        table.row(vec![
            "the-second".into(),
            "".into(),
            "False".into(),
            "the disk is full: no space is left on it".into(),
        ]);
        table
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let wanted = "\
NAME        READY  MESSAGE
one         True
the-second  False  the disk is full: no space is left on it
";
        assert_eq!(plain(&table().render(None)), wanted);
        assert_eq!(plain(&table().render(Some(80))), wanted);
    }

    #[test]
    fn only_the_last_column_is_broken() {
        let wanted = "\
NAME        READY  MESSAGE
one         True
the-second  False  the disk is full: no space is
                   left on it
";
        assert_eq!(plain(&table().render(Some(52))), wanted);
        let wanted = "\
NAME        READY
one         True
the-second  False
    the disk is full: no space
    is left on it
";
        assert_eq!(plain(&table().render(Some(32))), wanted);
        // A short text is not broken, and stays in its column.
        let mut short = Table::new(&["NAME", "AGE"]);
        short.row(vec!["a-long-name".into(), "3m44s".into()]);
        assert_eq!(plain(&short.render(Some(15))), "NAME         AGE\na-long-name  3m44s\n");
    }

    #[test]
    fn styles_do_not_move_columns() {
        let mut styled = Table::new(&["A", "B"]);
        styled.row(vec![Cell::new("x", crate::render::style::BAD), "y".into()]);
        styled.row(vec!["日本".into(), "z".into()]);
        assert_eq!(plain(&styled.render(None)), "A     B\nx     y\n日本  z\n");
    }

    #[test]
    fn a_table_without_rows_is_empty() {
        assert_eq!(Table::new(&["A"]).render(None), "");
    }
}
