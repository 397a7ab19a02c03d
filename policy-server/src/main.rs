mod manifests;
fn main() {}
