//! The names of the objects of new policies, made from the names that people see.

use uuid::Uuid;

/// The maximum length of a slug. A name with a part of a uid then has at most 63 characters, as an id of the published form.
const MAX_SLUG: usize = 50;

/// Returns the name in lower case, with a hyphen for each run of other characters than a-z and 0-9. A name without such characters
/// becomes `policy`.
pub(super) fn slug(name: &str) -> String {
    let mut slug = String::new();
    for letter in name.chars().flat_map(char::to_lowercase) {
        if slug.len() == MAX_SLUG {
            break;
        }
        if letter.is_ascii_alphanumeric() {
            slug.push(letter);
        } else if !slug.is_empty() && !slug.ends_with('-') {
            slug.push('-');
        }
    }
    let slug = slug.trim_end_matches('-');
    if slug.is_empty() { "policy".to_owned() } else { slug.to_owned() }
}

/// Returns the slug followed by the end of a random uid, for a slug that is in use.
pub(super) fn unique_slug(name: &str, uid: &Uuid) -> String {
    let uid = uid.simple().to_string();
    format!("{}-{}", slug(name), &uid[uid.len() - 10..])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proviso_core::PolicyId;

    use super::*;

    #[test]
    fn a_slug_has_the_letters_of_the_name() {
        let long = "x".repeat(300);
        for (name, expected) in [
            ("Cost centers", "cost-centers"),
            ("  VM: sizes (large)! ", "vm-sizes-large"),
            ("政策 🔒", "policy"),
            ("a__b", "a-b"),
            ("-", "policy"),
            (long.as_str(), &long[..MAX_SLUG]),
        ] {
            assert_eq!(slug(name), expected, "{name}");
        }
        let uid = "a1a2a3a4-b1b2-c1c2-d1d2-e1e2e3e4e5e6".parse().unwrap();
        assert_eq!(unique_slug("Cost centers", &uid), "cost-centers-e2e3e4e5e6");
    }

    proptest! {
        #[test]
        fn every_slug_is_a_name_and_an_id(name in ".{1,300}", uid: u128) {
            for name in [slug(&name), unique_slug(&name, &Uuid::from_u128(uid))] {
                prop_assert!(PolicyId::cluster(&name).is_ok(), "{name}");
                prop_assert!(name.len() <= 63 && proviso_core::names::is_dns_label(&name), "{name}");
            }
        }
    }
}
