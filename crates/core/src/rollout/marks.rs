//! The marks on revisions, which record the live generation and the beginning of grace periods. The operator writes some of them
//! before and some after it changes the webhooks, so that it can stop after any write: the live generation is on record before
//! the switch, and the grace period of another generation begins when no webhook calls the generation any more.

use super::{Mark, Observed};

/// New marks of revisions, by their generations.
type Marks = Vec<(i64, Mark)>;

/// Returns the changes of marks to write before and after the webhooks change. `still_called` are the generations that webhooks
/// call after the change.
pub(super) fn changes(
    observed: &Observed,
    live: Option<i64>,
    still_called: &[i64],
    is_break_glass: bool,
) -> (Marks, Marks) {
    let (mut before, mut after) = (Marks::new(), Marks::new());
    for revision in &observed.revisions {
        let (generation, mut mark) = (revision.generation, revision.mark);
        if live == Some(generation) {
            // Break-glass does not change the record.
            if mark != Some(Mark::Live) && !is_break_glass {
                before.push((generation, Mark::Live));
            }
            continue;
        }
        if observed.is_called(generation) && matches!(mark, None | Some(Mark::Retired)) {
            // Somebody pointed a webhook at this generation. Its grace period must not count from an earlier time, even if
            // the operator stops after the switch.
            mark = Some(Mark::Called);
            before.push((generation, Mark::Called));
        }
        let next = match mark {
            None | Some(Mark::Retired) => continue,
            Some(Mark::Live) if is_break_glass => continue,
            Some(_) if still_called.contains(&generation) => Mark::Called,
            Some(_) => Mark::Retired,
        };
        if mark != Some(next) {
            after.push((generation, next));
        }
    }
    (before, after)
}
