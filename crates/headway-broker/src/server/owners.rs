//! The user whose limits count for a client: the owner of a subordinate user id, else the client's own user.
//!
//! A person without privileges has thousands of user ids: those that `/etc/subuid` gives to its account for containers
//! (subuid(5)). Limits and turns count for the account.

use std::fs::File;
use std::io::Read;
use std::ops::Range;

/// Bytes that are read of each file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The user whose limits count for clients of user `uid`.
pub(super) fn account_of(uid: u32) -> u32 {
    account(uid, &read("/etc/subuid"), || read("/etc/passwd"))
}

/// The text of a file; nothing of one that cannot be read.
fn read(path: &str) -> String {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text));
    read.map(|_| text).unwrap_or_default()
}

/// What the files with these contents say.
fn account(uid: u32, ranges: &str, users: impl FnOnce() -> String) -> u32 {
    let Some((name, start)) = owner(uid, ranges) else { return uid };
    let named = users().lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?
    });
    // Accounts of a directory service are in no file: the first id of the range stands for its owner.
    named.or_else(|| name.parse().ok()).unwrap_or(start)
}

/// Name or number of the account whose subordinate id `uid` is, and the first id of the account's first range.
fn owner(uid: u32, ranges: &str) -> Option<(&str, u32)> {
    let range = |line: &str| -> Option<Range<u32>> {
        let mut fields = line.split(':').skip(1).map(|field| field.trim().parse::<u32>());
        let start = fields.next()?.ok()?;
        Some(start..start.saturating_add(fields.next()?.ok()?))
    };
    let holds = |line: &&str| range(line).is_some_and(|range| range.contains(&uid));
    let (name, _) = ranges.lines().find(holds)?.split_once(':')?;
    let mut theirs = ranges.lines().filter(|line| line.split(':').next() == Some(name));
    Some((name, theirs.find_map(range)?.start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subordinate_user_id_counts_for_its_owner() {
        let ranges = "ada:100000:65536\n1001:165536:10\nldap:200000:5\nldap:300000:5\nbroken\n:x:\n";
        let users = "root:x:0:0:::/bin/sh\nada:x:1000:1000::/home/ada:/bin/sh\n";
        for (uid, expected) in [
            (0, 0),
            (1000, 1000),
            (99_999, 99_999),
            (100_000, 1000),
            (165_535, 1000),
            (165_545, 1001),
            (165_546, 165_546),
            (300_004, 200_000),
            (u32::MAX, u32::MAX),
        ] {
            assert_eq!(account(uid, ranges, || users.to_owned()), expected, "{uid}");
        }
        assert_eq!(account(100_000, "", || users.to_owned()), 100_000);
    }
}
