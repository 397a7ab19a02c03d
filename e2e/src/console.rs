//! The commands of a Markdown page, run as they are written.
//!
//! A fenced block `console` holds commands (`$ …`, with `\` at the end of a line that continues) and lines of their output, in which
//! `…` stands for any text. A fenced block whose first line is `# NAME.yaml` is a file of the reader.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;

use crate::until_with;

/// The words in the output of commands that fail.
const FAILURES: [&str; 4] = ["denied", "REJECTED", "Rejected", "Error"];

/// A command of a page, and the lines that its output has.
#[derive(Debug, PartialEq, Eq)]
pub struct Step {
    pub command: String,
    pub output: Vec<String>,
}

/// Returns the blocks with this information string, without their fences.
fn blocks<'a>(page: &'a str, language: &'a str) -> impl Iterator<Item = &'a str> {
    let fence = format!("```{language}\n");
    let starts: Vec<_> = page.match_indices(&fence).map(|(at, fence)| at + fence.len()).collect();
    starts.into_iter().filter_map(move |start| page[start..].split("```").next())
}

/// Returns the commands of a page, or of a part of one.
#[must_use]
pub fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut continues = false;
    for line in blocks(page, "console").flat_map(str::lines) {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (None, Some(step)) if continues => step.command.extend(["\n", line]),
            (Some(command), _) => steps.push(Step { command: command.to_owned(), output: Vec::new() }),
            (None, Some(step)) => step.output.push(line.to_owned()),
            (None, None) => {}
        }
        continues = line.ends_with('\\');
    }
    steps
}

/// Returns the lines of a page that look like commands, and that [`steps`] ignores because they are not in a block `console`.
#[must_use]
pub fn ignored_commands(page: &str) -> Vec<&str> {
    let mut ignored = Vec::new();
    let mut fence = None;
    for line in page.lines() {
        let text = line.trim_start();
        match (text.strip_prefix("```"), fence) {
            (Some(language), None) => fence = Some(language),
            (Some(_), Some(_)) => fence = None,
            // An indented command is not a command of its block.
            (None, _) if text.starts_with("$ ") && (fence != Some("console") || text != line) => ignored.push(line),
            (None, _) => {}
        }
    }
    ignored
}

/// Returns the files of a page: their names and their contents.
#[must_use]
pub fn files(page: &str) -> Vec<(&str, &str)> {
    let named = |block| {
        let (first_line, _) = str::split_once(block, '\n')?;
        let name = first_line.strip_prefix("# ")?;
        Path::new(name).extension().is_some_and(|extension| extension == "yaml").then_some((name, block))
    };
    blocks(page, "yaml").filter_map(named).collect()
}

/// Returns true if `found` has the parts of `expected` between its `…` in their order. All white space counts as one space.
fn matches(found: &str, expected: &str) -> bool {
    let normalized = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let found = normalized(found);
    let mut rest = found.as_str();
    expected.split('…').map(normalized).all(|part| match rest.split_once(&part) {
        Some((_, after)) => {
            rest = after;
            true
        }
        None => false,
    })
}

/// A terminal in which the commands of pages run: a folder, an environment, and the variables that commands have set.
#[derive(Debug)]
pub struct Console {
    folder: PathBuf,
    environment: Vec<(OsString, OsString)>,
    /// A program with arguments that runs the shell, such as `nsenter`.
    wrapper: Vec<String>,
    /// The commands that set variables. Each command has a shell of its own, which runs them first.
    variables: Vec<String>,
    timeout: Duration,
}

impl Console {
    /// Returns a terminal in `folder`, with `programs` at the beginning of `PATH`. A step fails after `timeout` without its output.
    #[must_use]
    pub fn new(folder: &Path, programs: &[&Path], timeout: Duration) -> Self {
        let mut path = OsString::new();
        for folder in programs {
            path.push(folder);
            path.push(":");
        }
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let environment = vec![("PATH".into(), path)];
        Self { folder: folder.to_owned(), environment, wrapper: Vec::new(), variables: Vec::new(), timeout }
    }

    /// Sets an environment variable of all commands.
    #[must_use]
    pub fn variable(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Runs the shell of each command by another program.
    #[must_use]
    pub fn wrapper(mut self, wrapper: Vec<String>) -> Self {
        self.wrapper = wrapper;
        self
    }

    /// Writes the files of a page into the folder.
    ///
    /// # Errors
    ///
    /// If a file cannot be written.
    pub fn write_files(&self, page: &str) -> Result<()> {
        for (name, content) in files(page) {
            let path = self.folder.join(name);
            std::fs::create_dir_all(path.parent().context("a file has a folder")?)?;
            std::fs::write(&path, content).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }

    /// Runs a step. A step with output is repeated until its output has every line, because a status follows a change a moment later.
    /// A step without output runs once.
    ///
    /// # Errors
    ///
    /// If the command fails, unless the output on the page has a denial, a rejection or an error; or if its output lacks a line at
    /// the end of the time limit.
    pub async fn run(&mut self, step: &Step) -> Result<()> {
        let name = step.command.split(['=', ' ']).next().unwrap_or_default();
        let is_assignment = name == "export" || step.command[name.len()..].starts_with('=');
        if is_assignment {
            self.variables.push(step.command.clone());
        }
        if step.output.is_empty() {
            let (is_success, output) = self.execute(&step.command).await?;
            ensure!(is_success, "{}: {output}", step.command);
            return Ok(());
        }
        let may_fail = step.output.iter().any(|line| FAILURES.iter().any(|failure| line.contains(failure)));
        until_with(&step.command, self.timeout, self.timeout, async || {
            let (is_success, output) = self.execute(&step.command).await?;
            let missing = step.output.iter().find(|line| !output.lines().any(|found| matches(found, line)));
            ensure!(missing.is_none(), "the output lacks {missing:?}:\n{output}");
            ensure!(is_success || may_fail, "the command failed:\n{output}");
            Ok(())
        })
        .await
    }

    /// Runs a command in a shell, and returns its success and its output.
    async fn execute(&self, command: &str) -> Result<(bool, String)> {
        let script = self.variables.iter().map(String::as_str).chain([command]).collect::<Vec<_>>().join("\n");
        let mut arguments = self.wrapper.iter().map(String::as_str).chain(["bash", "-c", &script]);
        let output = Command::new(arguments.next().context("a program")?)
            .args(arguments)
            .current_dir(&self.folder)
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await?;
        let text = [output.stdout, output.stderr].concat();
        Ok((output.status.success(), String::from_utf8(text)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Page\n\n```console\n$ first \\\n    --long\n… done …\n$ NAME=value\n```\n\n```yaml\n# deploy/k.yaml\na: 1\n```\n\n```\n$ no command\n```\n";

    #[test]
    fn a_page_has_commands_with_output_and_files() {
        let step = |command: &str, output: &[&str]| Step {
            command: command.to_owned(),
            output: output.iter().map(|line| (*line).to_owned()).collect(),
        };
        assert_eq!(steps(PAGE), [step("first \\\n    --long", &["… done …"]), step("NAME=value", &[])]);
        assert_eq!(files(PAGE), [("deploy/k.yaml", "# deploy/k.yaml\na: 1\n")]);
    }

    #[test]
    fn a_command_outside_of_a_console_block_is_found() {
        assert_eq!(ignored_commands(PAGE), ["$ no command"]);
        let page = "$ without a block\n\n- item\n\n  ```console\n  $ indented\n  ```\n";
        assert_eq!(ignored_commands(page), ["$ without a block", "  $ indented"]);
    }

    #[test]
    fn an_output_line_matches_its_parts_in_order() {
        assert!(matches("deployment.apps/web   created", "deployment.apps/web created"));
        assert!(matches("cluster.a  Active  1", "cluster.a … 1"));
        assert!(!matches("1  Active  cluster.a", "cluster.a … 1"));
    }

    #[tokio::test]
    async fn a_variable_of_a_step_is_set_for_later_steps() -> Result<()> {
        let folder = std::env::temp_dir();
        let mut console = Console::new(&folder, &[], Duration::from_secs(30));
        for step in steps("```console\n$ A=$(echo b)\n$ export C=d\n$ echo $A $C\nb d\n```\n") {
            console.run(&step).await?;
        }
        Ok(())
    }
}
