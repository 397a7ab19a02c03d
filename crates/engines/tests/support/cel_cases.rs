//! The cases of `cases/cel/*.yaml`: CEL expressions and their expected results. `cel/libraries.rs` evaluates the expressions in
//! the engine, and `e2e/tests/cluster/cel.rs` in an API server.

use std::path::Path;

use serde::Deserialize;

/// An expression and its expected result.
pub struct Question {
    /// The name of the case of the expression.
    pub case: String,
    pub expression: String,
    pub wanted: Answer,
}

/// The result of an expression.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    Holds,
    Fails,
    /// The expression has no value or does not compile. An API server also refuses policies with type errors, which the engine
    /// detects only during the evaluation.
    Errors,
}

/// An expression that has different results in the engine and in an API server.
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

/// Returns the expressions of all files in a folder. `select` chooses the expected result of an expression whose results differ.
pub fn questions(folder: &Path, select: impl Fn(&Difference) -> Answer) -> Result<Vec<Question>, String> {
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
                    return Err(wrong(&format!("{}: has equal results or no `why`", difference.expression)));
                }
                let (case, wanted) = (case.name.clone(), select(&difference));
                questions.push(Question { case, expression: difference.expression, wanted });
            }
        }
    }
    Ok(questions)
}
