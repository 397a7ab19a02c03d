//! Client certificates of API servers: the server answers only clients with a certificate of the authorities in a file.

use proviso_e2e::pki::Authority;

use crate::support::tls::{Pair, replace};
use crate::support::{Folder, Server, forbid, pod, policy};

#[tokio::test]
async fn only_clients_with_a_certificate_of_the_current_authorities_are_answered() {
    let (folder, pair) = (Folder::new(), Pair::new());
    let files = folder.root().join("tls");
    let (own, other) = (Authority::new("own", &files).unwrap(), Authority::new("other", &files).unwrap());
    pair.write(&files);
    let client_ca = files.join("client-ca.crt");
    std::fs::write(&client_ca, own.pem()).unwrap();
    folder.write("a.json", policy("a", &forbid("true", "decided")));
    let file = |name: &str| files.join(name).to_str().unwrap().to_owned();
    let (cert, key, ca) = (file("tls.crt"), file("tls.key"), file("client-ca.crt"));
    let server = Server::start(folder, &["--tls-cert", &cert, "--tls-key", &key, "--client-ca", &ca]).await;

    let (known, stranger) =
        (own.client("kube-apiserver", None).unwrap(), other.client("kube-apiserver", None).unwrap());
    let (path, body) = ("/validate/cluster.a", || pod("u", "x").to_string());
    let answered = async |client| {
        let answer = pair.post_as(&server.listen, client, path, body()).await;
        answer.is_ok_and(|answer| answer.message() == "decided")
    };
    assert!(answered(&known).await);
    assert!(!answered(&stranger).await, "a certificate of another authority");
    for protocol in ["http/1.1", "h2"] {
        let without = pair.post(&server.listen, protocol, path, body()).await;
        assert!(without.is_err(), "a client without a certificate: {protocol}");
    }

    // A file that cannot be used changes nothing.
    replace(&client_ca, "what?");
    server.until("a warning", async || server.event("new client CA refused, the old one stays").is_some()).await;
    assert!(answered(&known).await && !answered(&stranger).await);

    // Other authorities replace the old ones for new connections, without a restart.
    replace(&client_ca, &format!("{}{}", own.pem(), other.pem()));
    server.until("both authorities", async || answered(&stranger).await).await;
    assert!(answered(&known).await);
    replace(&client_ca, &other.pem());
    server.until("the end of the first authority", async || !answered(&known).await).await;
    assert!(answered(&stranger).await);
}
