//! Divides entries into segments of a message by their size. ONAP's policy-handler and deployment-handler tag segments as `1/3`.

/// The maximum size of the member that tags a segment, with its comma, in bytes.
pub(super) const TAG_SIZE: usize = r#""data_segment":"#.len() + 2 + 2 * usize::MAX.ilog10() as usize + 2 + 1 + 1;

/// Divides entries into consecutive segments. The sum of the sizes in a segment is at most `capacity`, unless a single entry is larger.
/// No entries result in no segments.
pub(super) fn divide<T>(entries: impl IntoIterator<Item = (T, usize)>, capacity: usize) -> Vec<Vec<T>> {
    let mut segments: Vec<Vec<T>> = Vec::new();
    let mut used = 0;
    for (entry, size) in entries {
        match segments.last_mut() {
            Some(segment) if used + size <= capacity => {
                used += size;
                segment.push(entry);
            }
            _ => {
                used = size;
                segments.push(vec![entry]);
            }
        }
    }
    segments
}

/// Returns the member that tags a segment, with a comma; empty for the only segment of a message. `index` begins with 0.
pub(super) fn tag(index: usize, count: usize) -> String {
    if count <= 1 { String::new() } else { format!(r#""data_segment":"{}/{count}","#, index + 1) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_tag_counts_from_one_and_is_left_out_for_one_segment() {
        assert_eq!(tag(0, 1), "");
        assert_eq!(tag(0, 3), r#""data_segment":"1/3","#);
        assert_eq!(tag(2, 3), r#""data_segment":"3/3","#);
        assert!(tag(usize::MAX - 1, usize::MAX).len() <= TAG_SIZE);
    }

    proptest! {
        #[test]
        fn segments_rejoin_to_the_whole_and_none_exceeds_the_capacity(
            sizes in prop::collection::vec(0_usize..=100, 0..50), capacity in 100_usize..300,
        ) {
            let segments = divide(sizes.iter().map(|size| (*size, *size)), capacity);
            prop_assert!(segments.iter().all(|segment| segment.iter().sum::<usize>() <= capacity && !segment.is_empty()));
            // A segment is not closed before it is full.
            for pair in segments.windows(2) {
                prop_assert!(pair[0].iter().sum::<usize>() + pair[1][0] > capacity);
            }
            prop_assert_eq!(segments.concat(), sizes);
        }
    }
}
