//! The parts of a release as CycloneDX writes them, one on each line.

use std::collections::BTreeMap;

use anyhow::Context;
use serde_json::{Value, json};

use super::{Crate, RELEASED};

/// The list of parts. It has no time and no number of its own, so that the same `Cargo.lock` gives the same bytes.
pub(super) fn document(crates: &BTreeMap<String, Crate>, lock: &str) -> anyhow::Result<String> {
    let checksums = checksums(lock);
    let released = || crates.values().filter(|it| it.is_released);
    let version = released().find(|it| it.is_ours()).map(|it| it.version.as_str()).context("no crate is released")?;
    let purl = |id: &String| crates.get(id).map(Crate::purl);
    let components = released().map(|it| {
        let mut component = json!({
            "type": "library", "bom-ref": it.purl(), "name": it.name, "version": it.version, "purl": it.purl(),
            "licenses": [{ "expression": it.licence }], "externalReferences": [{ "type": "vcs", "url": it.repository }],
        });
        if let Some(checksum) = checksums.get(&(it.name.as_str(), it.version.as_str())) {
            component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
        }
        component
    });
    let whole = json!({
        "type": "application", "bom-ref": "headway", "name": "headway", "version": version,
        "licenses": [{ "expression": "MIT OR Apache-2.0" }],
    });
    let tops = released().filter(|it| it.is_ours() && RELEASED.contains(&it.name.as_str())).map(Crate::purl);
    let mut dependencies = vec![json!({ "ref": "headway", "dependsOn": tops.collect::<Vec<_>>() })];
    dependencies.extend(
        released()
            .map(|it| json!({ "ref": it.purl(), "dependsOn": it.links.iter().filter_map(purl).collect::<Vec<_>>() })),
    );
    let lines = |values: Vec<Value>| values.iter().map(Value::to_string).collect::<Vec<_>>().join(",\n");
    Ok(format!(
        "{{\"bomFormat\":\"CycloneDX\",\"specVersion\":\"1.5\",\"version\":1,\n\"metadata\":{{\"component\":{whole}}},\n\
         \"components\":[\n{}\n],\n\"dependencies\":[\n{}\n]}}\n",
        lines(components.collect()),
        lines(dependencies)
    ))
}

/// The checksum of each crate, by name and version.
fn checksums(lock: &str) -> BTreeMap<(&str, &str), &str> {
    let packages = lock.split("[[package]]").filter_map(|package| {
        let value = |key: &str| {
            package.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \"")?.strip_suffix('"'))
        };
        Some(((value("name")?, value("version")?), value("checksum")?))
    });
    packages.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_a_release_has_its_name_licence_checksum_and_place_in_the_graph() {
        let root = crate::root();
        let lock = std::fs::read_to_string(root.join("Cargo.lock")).unwrap();
        let document: Value =
            serde_json::from_str(&document(&super::super::read(&root).unwrap(), &lock).unwrap()).unwrap();
        let components = document["components"].as_array().unwrap();
        let libc = components.iter().find(|it| it["name"] == "libc").unwrap();
        assert_eq!(libc["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(libc["hashes"][0]["content"].as_str().unwrap().len(), 64);
        assert!(!components.iter().any(|it| it["name"] == "proptest" || it["name"] == "headway-lab"));
        let dependencies = document["dependencies"].as_array().unwrap();
        assert_eq!(dependencies.len(), components.len() + 1);
        let known = |reference: &Value| components.iter().any(|it| it["bom-ref"] == *reference);
        assert!(dependencies.iter().flat_map(|it| it["dependsOn"].as_array().unwrap()).all(known));
    }
}
