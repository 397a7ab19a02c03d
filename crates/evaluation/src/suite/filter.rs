//! Selects tests and cases by name, in the syntax of `gator verify --run`.

use regex::Regex;

/// Selects the tests and cases to run.
#[derive(Clone, Debug)]
pub enum Filter {
    All,
    /// The filter `a`: selects cases that match `a`, and all cases of tests that match `a`.
    Either(Regex),
    /// The filter `a//b`: selects cases that match `b` in tests that match `a`.
    Both(Regex, Regex),
}

/// The error of an invalid filter.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    #[error("{0}")]
    Regex(#[from] regex::Error),
    #[error("has more than one `//`: it is TEST//CASE, or one expression for either")]
    Slashes,
}

impl Filter {
    /// Parses a filter. `None` and an empty text select everything.
    ///
    /// # Errors
    /// Returns an error if a part of the filter is not a regular expression, or there are more than two parts.
    pub fn new(text: Option<&str>) -> Result<Self, FilterError> {
        let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(Self::All) };
        let parts: Vec<_> = text.split("//").collect();
        match parts[..] {
            [either] => Ok(Self::Either(Regex::new(either)?)),
            [of_test, of_case] => Ok(Self::Both(Regex::new(of_test)?, Regex::new(of_case)?)),
            _ => Err(FilterError::Slashes),
        }
    }

    /// Returns true if the test or one of its cases is selected.
    pub fn selects_test<'a>(&self, test: &str, mut cases: impl Iterator<Item = &'a str>) -> bool {
        match self {
            Self::All => true,
            Self::Either(either) => either.is_match(test) || cases.any(|case| either.is_match(case)),
            Self::Both(of_test, _) => of_test.is_match(test),
        }
    }

    /// Returns true if a case of a test is selected.
    #[must_use]
    pub fn selects_case(&self, test: &str, case: &str) -> bool {
        match self {
            Self::All => true,
            Self::Either(either) => either.is_match(test) || either.is_match(case),
            Self::Both(of_test, of_case) => of_test.is_match(test) && of_case.is_match(case),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_selects_tests_and_cases() {
        for (filter, wanted) in [
            (None, [true, true, true]),
            (Some("label"), [true, true, false]),
            (Some("missing"), [true, false, true]),
            (Some("^labels$//"), [true, true, false]),
            (Some("//missing"), [true, false, true]),
            (Some("label//missing"), [true, false, false]),
        ] {
            let filter = Filter::new(filter).unwrap();
            let names = [("labels", "missing"), ("labels", "there"), ("images", "missing-tag")];
            assert_eq!(names.map(|(test, case)| filter.selects_case(test, case)), wanted, "{filter:?}");
            for (test, case) in names {
                assert!(filter.selects_test(test, [case].into_iter()) || !filter.selects_case(test, case));
            }
        }
        assert!(matches!(Filter::new(Some("a//b//c")), Err(FilterError::Slashes)));
        assert!(matches!(Filter::new(Some("(")), Err(FilterError::Regex(_))));
    }
}
