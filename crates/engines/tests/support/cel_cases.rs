//! The cases of `cases/cel/*.yaml`: expressions, and what comes of them here and on an API server. Both are asked:
//! `cel/libraries.rs` asks the engine, `e2e/tests/cel.rs` an API server.

use std::path::Path;

use serde::Deserialize;

/// An expression and what is expected of it.
pub struct Question {
    /// The name of its case.
    pub case: String,
    pub expression: String,
    pub wanted: Answer,
}

/// What comes of an expression.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    Holds,
    Fails,
    /// It has no value, or does not compile. On an API server, also where that does not take the policy at all: it knows types
    /// that the engine learns when it evaluates.
    Errors,
}

/// An expression that an API server answers otherwise.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Difference {
    pub expression: String,
    pub here: Answer,
    pub kubernetes: Answer,
    pub why: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    #[serde(default)]
    holds: Vec<String>,
    #[serde(default)]
    fails: Vec<String>,
    #[serde(default)]
    errors: Vec<String>,
    #[serde(default)]
    differs: Vec<Difference>,
}

/// The questions of all files in a folder; `of` says whose answer is wanted where there are two.
pub fn questions(folder: &Path, of: impl Fn(&Difference) -> Answer) -> Result<Vec<Question>, String> {
    let mut questions = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))? {
        let path = entry.map_err(|error| error.to_string())?.path();
        let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let text = std::fs::read_to_string(&path).map_err(|error| wrong(&error))?;
        let cases: Vec<Case> = serde_yaml::from_str(&text).map_err(|error| wrong(&error))?;
        for case in cases {
            for (expressions, wanted) in
                [(case.holds, Answer::Holds), (case.fails, Answer::Fails), (case.errors, Answer::Errors)]
            {
                let question = |expression| Question { case: case.name.clone(), expression, wanted };
                questions.extend(expressions.into_iter().map(question));
            }
            for difference in case.differs {
                if difference.here == difference.kubernetes || difference.why.is_empty() {
                    return Err(wrong(&format!("{}: is no difference, or does not say why", difference.expression)));
                }
                let (case, wanted) = (case.name.clone(), of(&difference));
                questions.push(Question { case, expression: difference.expression, wanted });
            }
        }
    }
    Ok(questions)
}
