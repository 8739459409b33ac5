//! The CPU forms against published vectors and independent implementations.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::common::{below, bytes, cipher, pack, portion, random, run, state, unpack};
use aes::cipher::{BlockModeEncrypt, KeyIvInit};
use headway_device::work::{Portion, Work, WorkError};
use headway_kernels::{Aes128Cbc, Cipher, Spin, find};

fn hex<const N: usize>(text: &str) -> [u8; N] {
    let digits: String = text.split_whitespace().collect();
    let bytes: Vec<_> = (0..N).map(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).unwrap()).collect();
    bytes.try_into().unwrap()
}

fn hex_text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn nist_sp_800_38a_f_2_1_gives_the_published_ciphertext() {
    let key = hex("2b7e151628aed2a6abf7158809cf4f3c");
    let iv = hex("000102030405060708090a0b0c0d0e0f");
    let plain: [u8; 64] = hex("6bc1bee22e409f96e93d7e117393172a ae2d8a571e03ac9c9eb76fac45af8e51
        30c81c46a35ce411e5fbc1191a0a52ef f69f2445df4f9b17ad2b417be66c3710");
    let expected: [u8; 64] = hex("7649abac8119b246cee98e9b12e9197d 5086cb9b507219ee95db113a917678b2
        73bed6b8e3c1743b7116e69e22229516 3ff1caa1681fac09120eca307586e1a7");
    let mut state = state(&Aes128Cbc, &[portion(Cipher { key, iv })]);
    let output = run(&Aes128Cbc, &pack(1, &[&plain]), &mut state);
    assert_eq!(unpack(&output), [expected]);
    assert_eq!(state[176..], expected[48..]);
}

/// Portions of random length cut into packets of random lengths, some empty; returns what went in and what came out.
fn random_streams(seed: u64, portions: &[Portion], cycles: u64) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let mut random = random(seed);
    let mut state = state(&Aes128Cbc, portions);
    let mut plain = vec![Vec::new(); portions.len()];
    let mut encrypted = plain.clone();
    for cycle in 0..cycles {
        let packets: Vec<_> = portions
            .iter()
            .map(|_| {
                let blocks = below(&mut random, 40);
                bytes(&mut random, 16 * blocks.saturating_sub(4))
            })
            .collect();
        let packets: Vec<&[u8]> = packets.iter().map(Vec::as_slice).collect();
        let output = run(&Aes128Cbc, &pack(cycle, &packets), &mut state);
        for (portion, (packet, output)) in packets.iter().zip(unpack(&output)).enumerate() {
            plain[portion].extend_from_slice(packet);
            encrypted[portion].extend_from_slice(output);
        }
    }
    (plain, encrypted)
}

#[test]
fn packets_of_a_stream_equal_one_message() {
    let mut random = random(11);
    let ciphers: Vec<_> = (0..5).map(|_| cipher(&mut random)).collect();
    let portions: Vec<_> = ciphers.iter().copied().map(portion).collect();
    let (plain, encrypted) = random_streams(12, &portions, 30);
    for ((plain, encrypted), cipher) in plain.iter().zip(&encrypted).zip(&ciphers) {
        let mut one = cbc::Encryptor::<aes::Aes128>::new(&cipher.key.into(), &cipher.iv.into());
        assert!(!plain.is_empty());
        let mut expected = plain.clone();
        one.encrypt_blocks(aes::Block::slice_as_chunks_mut(&mut expected).0);
        assert_eq!(*encrypted, expected);
    }
}

#[test]
fn packets_of_a_stream_equal_openssl() {
    if Command::new("openssl").arg("version").output().is_err() {
        println!("skipped: there is no `openssl` command");
        return;
    }
    let mut random = random(13);
    let ciphers: Vec<_> = (0..3).map(|_| cipher(&mut random)).collect();
    let portions: Vec<_> = ciphers.iter().copied().map(portion).collect();
    let (plain, encrypted) = random_streams(14, &portions, 20);
    for ((plain, encrypted), cipher) in plain.iter().zip(&encrypted).zip(&ciphers) {
        let mut openssl = Command::new("openssl")
            .args(["enc", "-aes-128-cbc", "-nopad", "-K", &hex_text(&cipher.key), "-iv", &hex_text(&cipher.iv)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // It fits the pipe, so that openssl never waits for us to read while we write.
        assert!(plain.len() < 60_000);
        openssl.stdin.take().unwrap().write_all(plain).unwrap();
        let done = openssl.wait_with_output().unwrap();
        assert!(done.status.success());
        assert_eq!(*encrypted, done.stdout);
    }
}

#[test]
fn a_portion_that_is_no_multiple_of_16_is_refused_by_number() {
    let portions = vec![portion(cipher(&mut random(15))); 2];
    let mut state = state(&Aes128Cbc, &portions);
    let block = pack(0, &[&[0; 16], &[0; 20]]);
    let error = Aes128Cbc.run(&block, &mut vec![0; block.len()], &mut state).unwrap_err();
    assert_eq!(
        error.to_string(),
        "kernel `aes128-cbc` refuses the block: portion 1 has 20 bytes, which is no multiple of 16"
    );
}

#[test]
fn a_stream_without_a_key_is_named() {
    let portions = [Portion { stream: "lidar".into(), ..Portion::default() }];
    let error = Aes128Cbc.init_state(&portions, &mut [0; 192]).unwrap_err();
    assert!(matches!(error, WorkError::MissingParameter { stream, .. } if stream == "lidar"));
}

#[test]
fn every_kernel_refuses_damaged_blocks_and_small_buffers() {
    for id in headway_kernels::ids() {
        let kernel = find(id).unwrap();
        let portions = vec![portion(cipher(&mut random(16))); 3];
        let good = pack(9, &[&[1; 32], &[], &[2; 16]]);
        let fresh = state(&*kernel, &portions);
        let refused = |block: &[u8], output: usize, state_bytes: usize| {
            let mut state = fresh[..state_bytes].to_vec();
            matches!(kernel.run(block, &mut vec![0; output], &mut state), Err(WorkError::BadBlock { .. }))
        };
        assert!(!refused(&good, good.len(), fresh.len()), "{id}");
        let mut bad = good.clone();
        bad[16] = 200; // the first portion's offset
        assert!(refused(&bad, good.len(), fresh.len()), "{id}: portion outside");
        let mut bad = good.clone();
        bad[0] ^= 1;
        assert!(refused(&bad, good.len(), fresh.len()), "{id}: magic");
        assert!(refused(&good[..39], good.len(), fresh.len()), "{id}: cut header");
        assert!(refused(&good, good.len() - 1, fresh.len()), "{id}: small output");
        assert!(refused(&good, good.len(), fresh.len() - 1), "{id}: small state");
    }
}

#[test]
fn a_block_without_portions_is_its_header() {
    for id in headway_kernels::ids() {
        let block = pack(77, &[]);
        assert_eq!(run(&*find(id).unwrap(), &block, &mut []), block, "{id}");
    }
}

#[test]
fn spin_copies_and_zeroes_the_padding() {
    let mut random = random(17);
    let portions: Vec<_> = [0, 1, 15, 16, 17, 100].map(|len| bytes(&mut random, len)).into();
    let portions: Vec<&[u8]> = portions.iter().map(Vec::as_slice).collect();
    let mut state = state(&Spin, &vec![Portion::default(); portions.len()]);
    let block = pack(5, &portions);
    let output = run(&Spin, &block, &mut state);
    assert_eq!(unpack(&output), portions);
    let data = output[64..].iter().filter(|&&byte| byte == 0xA5 || byte == 0x5A).count();
    let copied = portions.concat().iter().filter(|&&byte| byte == 0xA5 || byte == 0x5A).count();
    assert_eq!(data, copied, "padding is zero");
    assert_ne!(state[4 * 8 + 4..5 * 8], [0; 4], "the portion of 17 bytes has a sum");
}

#[test]
fn an_output_that_ends_before_the_padding_is_refused() {
    let block = pack(5, &[&[1; 17]]);
    let mut state = state(&Spin, &[Portion::default()]);
    let error = Spin.run(&block, &mut [0; 49], &mut state).unwrap_err();
    assert_eq!(error.to_string(), "kernel `spin` refuses the block: its output needs 64 bytes and has 49");
}
