//! The evidence of experiments as CSV (RFC 4180), for spreadsheets: a row for each count, and a row for each sample.

use csv::{Terminator, WriterBuilder};
use jiff::Timestamp;
use proviso_crds::{DivergenceCounts, DivergenceSample};

use super::text::printable;
use crate::report::{ExperimentReport, verdict_counts};

const HEADER: [&str; 17] = [
    "time",
    "experiment",
    "policy",
    "etag",
    "liveEtag",
    "sampleRate",
    "since",
    "record",
    "divergence",
    "count",
    "kind",
    "namespace",
    "user",
    "name",
    "message",
    "firstSeen",
    "lastSeen",
];
/// The number of columns that all rows of an experiment share.
const SHARED: usize = 7;
/// The beginnings of cells that a spreadsheet evaluates as a formula (OWASP, "CSV Injection").
const FORMULA: [char; 9] = ['=', '+', '-', '@', '\n', '＝', '＋', '－', '＠'];

/// Renders the counts and the samples of experiments that were read at `now`. An experiment without counts has no rows.
///
/// # Errors
/// When a row cannot be written, which does not happen in memory.
pub fn csv(experiments: &[ExperimentReport], now: Timestamp, has_header: bool) -> Result<String, csv::Error> {
    let mut bytes = Vec::new();
    let mut writer = WriterBuilder::new().terminator(Terminator::CRLF).from_writer(&mut bytes);
    if has_header {
        writer.write_record(HEADER)?;
    }
    for experiment in experiments {
        let Some(counts) = &experiment.divergence else { continue };
        let shared = shared(experiment, counts, now);
        let totals = [("Evaluated", counts.evaluated), ("Dropped", counts.dropped)];
        let verdicts = verdict_counts(counts).map(|verdict| (verdict.name, verdict.count));
        for (name, count) in totals.into_iter().chain(verdicts) {
            let row = shared.iter().cloned().chain(["count".to_owned(), name.to_owned(), count.to_string()]);
            let empty = HEADER.len() - SHARED - 3;
            writer.write_record(row.chain(std::iter::repeat_n(String::new(), empty)))?;
        }
        for sample in &experiment.samples {
            writer.write_record(shared.iter().cloned().chain(sample_cells(sample)))?;
        }
    }
    writer.flush()?;
    drop(writer);
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the cells of the columns that all rows of an experiment share.
fn shared(experiment: &ExperimentReport, counts: &DivergenceCounts, now: Timestamp) -> [String; SHARED] {
    let etag = |etag: &Option<String>| etag.as_deref().map(text).unwrap_or_default();
    [
        format!("{now:.0}"),
        text(experiment.experiment.as_str()),
        text(experiment.policy.as_str()),
        etag(&counts.etag),
        etag(&counts.live_etag),
        experiment.sample_rate.map(|rate| rate.to_string()).unwrap_or_default(),
        counts.since.0.to_string(),
    ]
}

/// Returns the cells of a sample, after the shared columns.
fn sample_cells(sample: &DivergenceSample) -> [String; HEADER.len() - SHARED] {
    [
        "sample".to_owned(),
        sample.divergence.as_str().to_owned(),
        sample.count.to_string(),
        text(&sample.kind),
        text(&sample.namespace),
        text(&sample.user),
        text(&sample.name),
        text(&sample.message),
        sample.first_seen.0.to_string(),
        sample.last_seen.0.to_string(),
    ]
}

/// Returns a text as a cell that no spreadsheet evaluates. Names and messages come from requests, and from authors of policies.
fn text(text: &str) -> String {
    let text = printable(text);
    if text.starts_with(FORMULA) { format!("'{text}") } else { text.into_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::tests::{NOW, experiment, previewing};
    use serde_json::{Value, json};

    fn export(status: &Value) -> Vec<String> {
        let report = ExperimentReport::new(&experiment(1, status));
        let text = csv(&[report], NOW.parse().unwrap(), true).unwrap();
        text.split_terminator("\r\n").map(str::to_owned).collect()
    }

    #[test]
    fn each_count_and_each_sample_is_a_row_with_both_etags() {
        let rows = export(&previewing(1));
        let header = "time,experiment,policy,etag,liveEtag,sampleRate,since,record,divergence,count,kind,namespace,\
                      user,name,message,firstSeen,lastSeen";
        assert_eq!((rows[0].as_str(), rows.len()), (header, 1 + 9 + 2));
        let shared = "2026-11-21T10:00:00Z,ns.team.stricter,ns.team.labels,\"\"\"6e342990302ac2ec\"\"\",\
                      \"\"\"bfcf0795c990c98d\"\"\",1,2026-11-21T09:48:00Z,";
        let after: Vec<_> = rows[1..].iter().map(|row| row.strip_prefix(shared).unwrap()).collect();
        assert_eq!(after[..3], ["count,Evaluated,1200,,,,,,,", "count,Dropped,6,,,,,,,", "count,Same,1187,,,,,,,"]);
        let sample = "sample,NewlyDenied,10,Pod,team,alice,web-1,\
                      \"lacks the label team, which every Pod of a team must have\",2026-11-21T09:49:00Z,\
                      2026-11-21T09:59:00Z";
        assert_eq!(after[9], sample);
        assert_eq!(export(&Value::Null).len(), 1, "an experiment without counts has no rows");
    }

    #[test]
    fn no_cell_of_a_request_is_a_formula() {
        for (message, wanted) in [
            ("=HYPERLINK(\"http://a\")", "\"'=HYPERLINK(\"\"http://a\"\")\""),
            ("+1", "'+1"),
            ("-1", "'-1"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("\t=1", "\u{fffd}=1"),
            ("\r=1", "\u{fffd}=1"),
            ("\n=1", "\"'\n=1\""),
            ("＝1", "'＝1"),
            ("a=1", "a=1"),
            ("a \"b\"\nc", "\"a \"\"b\"\"\nc\""),
        ] {
            let mut status = previewing(1);
            status["samples"][0]["message"] = json!(message);
            status["samples"][0]["name"] = json!(message);
            let cells = format!("alice,{wanted},{wanted},2026-11-21T09:49:00Z");
            let text = export(&status).join("\r\n");
            assert!(text.contains(&cells), "{message:?}: {text}");
        }
    }
}
