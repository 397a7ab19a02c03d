//! Lists of objects, as `kubectl get -o yaml` prints them.

use proviso_evaluation::documents::{Document, DocumentPosition};
use serde_json::Value;

/// Replaces each list with its items.
pub(crate) fn flatten(documents: Vec<Document>) -> Vec<Document> {
    let mut flat = Vec::new();
    for document in documents {
        match &document.value["items"] {
            Value::Array(items) if document.kind().ends_with("List") => {
                for (index, item) in items.iter().enumerate() {
                    let place = DocumentPosition { file: document.place.file.clone(), number: Some(index + 1) };
                    flat.push(Document { place, value: item.clone() });
                }
            }
            _ => flat.push(document),
        }
    }
    flat
}
