use proviso_core::configuration::{
    Action, Assignments, Audience, ConfigurationPolicy, Contents, Event, Item, Items, Version,
};
use serde_json::json;

use super::*;

fn item(name: &str, text: &str, is_confidential: bool) -> Item {
    let policy = ConfigurationPolicy {
        id: format!("cluster.{name}").parse().unwrap(),
        version: Version::of(1),
        config_name: name.to_owned(),
        owner: None,
        attributes: BTreeMap::new(),
        is_confidential,
        audience: Audience::All,
    };
    Item::new(&policy, &json!({ "text": text })).unwrap()
}

fn items(list: &[(&str, &Item)]) -> Items {
    list.iter().map(|(name, item)| (format!("cluster.{name}").parse().unwrap(), (*item).clone())).collect()
}

/// Writes contents as the driver does: only the parts that are not stored yet.
fn write(folder: &ComponentFolder, contents: &Contents) {
    let stored = folder.read().unwrap();
    let event = Event {
        action: Action::Updated,
        timestamp: String::new(),
        update_id: "u".to_owned(),
        policies_count: contents.items.len(),
    };
    let parts = contents.parts(&stored.assignments(), &event).unwrap();
    folder.write_parts(&stored.changed(&parts).collect::<Vec<_>>(), &stored.stale(&parts)).unwrap();
    assert!(folder.read().unwrap().is_equal(contents));
}

fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn folder() -> (tempfile::TempDir, ComponentFolder) {
    let root = tempfile::tempdir().unwrap();
    let folder = ComponentFolder::new(root.path().join("meter"));
    (root, folder)
}

#[test]
fn the_files_follow_the_contents() {
    let (_root, folder) = folder();
    assert!(!folder.read().unwrap().has_event());
    let (old, new, secret) = (item("a", "old", false), item("a", "new", false), item("s", "secret", true));
    write(&folder, &Contents { items: items(&[("a", &old), ("s", &secret)]), previous: Items::new() });
    assert_eq!(names(folder.path()), ["event", "items", "previous"]);
    assert_eq!(names(&folder.path().join("items")), ["cluster.a", "cluster.s"]);
    let body = |kind: &str, name: &str| std::fs::read_to_string(folder.path().join(kind).join(name)).unwrap();
    assert_eq!(body("items", "cluster.a"), &**old.body());
    assert_eq!(
        [mode(&folder.path().join("items/cluster.a")), mode(&folder.path().join("items/cluster.s"))],
        [0o644, 0o600]
    );

    write(&folder, &Contents { items: items(&[("a", &new)]), previous: items(&[("a", &old), ("s", &secret)]) });
    assert_eq!(
        (body("items", "cluster.a"), body("previous", "cluster.a")),
        (new.body().to_string(), old.body().to_string())
    );
    assert_eq!(
        (names(&folder.path().join("items")), mode(&folder.path().join("previous/cluster.s"))),
        (vec!["cluster.a".to_owned()], 0o600)
    );

    // A policy becomes confidential, and another one is removed.
    let hidden = item("a", "new", true);
    write(&folder, &Contents { items: items(&[("a", &hidden)]), previous: Items::new() });
    assert_eq!(
        (mode(&folder.path().join("items/cluster.a")), names(&folder.path().join("previous")).len()),
        (0o600, 0)
    );
    write(&folder, &Contents::default());
    assert_eq!((names(&folder.path().join("items")).len(), folder.read().unwrap().has_event()), (0, true));
}

#[test]
fn contents_of_several_parts_are_complete() {
    let (_root, folder) = folder();
    let large = "x".repeat(400 * 1024);
    let bodies: Vec<_> =
        (0..8).map(|index| (format!("p{index}"), item(&format!("p{index}"), &large, index % 2 == 0))).collect();
    let some = |range: std::ops::Range<usize>| {
        let list: Vec<_> = bodies[range].iter().map(|(name, item)| (name.as_str(), item)).collect();
        Contents { items: items(&list), previous: Items::new() }
    };
    for range in [0..8, 2..8, 0..3, 0..8, 7..8] {
        write(&folder, &some(range.clone()));
        assert_eq!(names(&folder.path().join("items")).len(), range.len(), "{range:?}");
    }
}

#[test]
fn files_of_others_are_replaced_in_the_folders_of_bodies_and_links_are_not_followed() {
    let (root, folder) = folder();
    let contents = Contents { items: items(&[("a", &item("a", "text", false))]), previous: Items::new() };
    write(&folder, &contents);
    let outside = root.path().join("outside");
    std::fs::write(&outside, "kept").unwrap();
    std::fs::write(folder.path().join("notes"), "kept").unwrap();
    std::fs::write(folder.path().join("items/other"), "removed").unwrap();
    std::fs::remove_file(folder.path().join("items/cluster.a")).unwrap();
    std::os::unix::fs::symlink(&outside, folder.path().join("items/cluster.a")).unwrap();
    assert!(!folder.read().unwrap().is_equal(&contents));
    write(&folder, &contents);
    assert_eq!(names(&folder.path().join("items")), ["cluster.a"]);
    assert_eq!(std::fs::read_to_string(&outside).unwrap(), "kept");

    // The folder is removed with the files of the server only.
    folder.write_record(b"{}").unwrap();
    assert_eq!(mode(&folder.path().join(RECORD)), 0o600);
    folder.remove().unwrap();
    assert_eq!(names(folder.path()), ["notes"]);
    std::fs::remove_file(folder.path().join("notes")).unwrap();
    folder.remove().unwrap();
    assert!(!folder.path().exists());

    // A link in place of the folder is refused.
    std::fs::create_dir(root.path().join("elsewhere")).unwrap();
    std::os::unix::fs::symlink(root.path().join("elsewhere"), folder.path()).unwrap();
    assert!(matches!(folder.write_parts(&[], &[]), Err(FolderError::NotFolder(_))));
    assert!(matches!(folder.write_record(b"{}"), Err(FolderError::NotFolder(_))));
    assert_eq!(names(&root.path().join("elsewhere")).len(), 0);
}

#[test]
fn an_event_that_is_no_regular_file_is_not_opened() {
    let (root, folder) = folder();
    let contents = Contents { items: items(&[("a", &item("a", "text", false))]), previous: Items::new() };
    write(&folder, &contents);
    let (outside, event) = (root.path().join("outside"), folder.path().join(EVENT_KEY));
    std::fs::write(&outside, "kept").unwrap();
    std::fs::remove_file(&event).unwrap();
    std::os::unix::fs::symlink(&outside, &event).unwrap();
    assert_eq!(event_text(&event).unwrap().as_deref(), Some(""));
    std::fs::remove_file(&event).unwrap();
    // A socket cannot be opened.
    let _socket = std::os::unix::net::UnixListener::bind(&event).unwrap();
    assert_eq!(event_text(&event).unwrap().as_deref(), Some(""));
    assert!(!folder.read().unwrap().is_equal(&contents));
    write(&folder, &contents);
    assert!(folder.read().unwrap().is_equal(&contents));
    assert_eq!(std::fs::read_to_string(outside).unwrap(), "kept");
}

#[test]
fn nothing_is_written_after_the_folder_is_closed() {
    let (_root, folder) = folder();
    folder.close();
    assert!(matches!(folder.write_record(b"{}"), Err(FolderError::Closed(_))));
    assert!(!folder.path().exists());
}

#[test]
fn parts_without_the_first_one_remove_nothing() {
    let (_root, folder) = folder();
    let contents = Contents { items: items(&[("a", &item("a", "text", true))]), previous: Items::new() };
    write(&folder, &contents);
    let more = Contents { items: items(&[("b", &item("b", "text", true))]), previous: Items::new() };
    let event =
        Event { action: Action::Updated, timestamp: String::new(), update_id: String::new(), policies_count: 1 };
    let mut parts = more.parts(&Assignments::default(), &event).unwrap();
    parts.retain(|part| part.place == Place::Secret);
    parts[0].index = 1;
    folder.write_parts(&[&parts[0]], &[]).unwrap();
    assert_eq!(names(&folder.path().join("items")), ["cluster.a", "cluster.b"]);
}
