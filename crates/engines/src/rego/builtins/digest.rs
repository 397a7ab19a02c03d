//! `crypto.sha1`, `crypto.sha256` and the HMACs. MD5 is missing on purpose: a decision that depends on it is not safe.

use regorus::Value;
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha512};

use super::functions::Function;

pub(super) const FUNCTIONS: &[(&str, u8, Function)] = &[
    ("crypto.hmac.equal", 2, |values| Ok(equal(values))),
    ("crypto.hmac.sha1", 2, |values| Ok(hex_hmac(values, hmac::<Sha1, 64>))),
    ("crypto.hmac.sha256", 2, |values| Ok(hex_hmac(values, hmac::<Sha256, 64>))),
    ("crypto.hmac.sha512", 2, |values| Ok(hex_hmac(values, hmac::<Sha512, 128>))),
    ("crypto.sha1", 1, |values| Ok(hex_digest(values, hash::<Sha1>))),
    ("crypto.sha256", 1, |values| Ok(hex_digest(values, hash::<Sha256>))),
];

fn hex_digest(values: &[Value], digest: fn(&[&[u8]]) -> Vec<u8>) -> Value {
    match values {
        [Value::String(text)] => hexadecimal(&digest(&[text.as_bytes()])).into(),
        _ => Value::Undefined,
    }
}

fn hex_hmac(values: &[Value], mac: fn(&[u8], &[u8]) -> Vec<u8>) -> Value {
    match values {
        [Value::String(text), Value::String(key)] => hexadecimal(&mac(key.as_bytes(), text.as_bytes())).into(),
        _ => Value::Undefined,
    }
}

/// Compares two strings in constant time.
fn equal(values: &[Value]) -> Value {
    match values {
        [Value::String(left), Value::String(right)] => {
            let differs = left
                .bytes()
                .zip(right.bytes())
                .fold(left.len() ^ right.len(), |differs, (left, right)| differs | usize::from(left ^ right));
            (differs == 0).into()
        }
        _ => Value::Undefined,
    }
}

fn hash<D: Digest>(parts: &[&[u8]]) -> Vec<u8> {
    let mut digest = D::new();
    for part in parts {
        digest.update(part);
    }
    digest.finalize().to_vec()
}

/// Computes an HMAC (RFC 2104). `BLOCK` is the block size of the hash function in bytes.
fn hmac<D: Digest, const BLOCK: usize>(key: &[u8], text: &[u8]) -> Vec<u8> {
    let mut block = [0_u8; BLOCK];
    let key = if key.len() > BLOCK { hash::<D>(&[key]) } else { key.to_vec() };
    block[..key.len()].copy_from_slice(&key);
    let inner = hash::<D>(&[&block.map(|byte| byte ^ 0x36), text]);
    hash::<D>(&[&block.map(|byte| byte ^ 0x5c), &inner])
}

pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        _ = write!(text, "{byte:02x}");
        text
    })
}
