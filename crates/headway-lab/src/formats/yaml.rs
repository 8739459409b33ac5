//! Job sets of the schedule-abstraction analysis as YAML: a list `jobset` of maps.

use saphyr_parser::{Event, Parser};

use super::jobs::{ImportedJob, checked, unique};
use super::{FormatError, excerpt, integer};

/// A document as far as job sets need it.
enum Node {
    Scalar(String),
    List(Vec<Self>),
    Map(Vec<(Self, Self)>),
}

/// Lists and maps inside each other; a job set has four.
const DEPTH_MAX: usize = 16;
const KEYS: [&str; 8] =
    ["Task ID", "Job ID", "Arrival min", "Arrival max", "Cost min", "Cost max", "Deadline", "Priority"];

/// What is open while events are read.
enum OpenNode {
    List(Vec<Node>),
    Map(Vec<(Node, Node)>, Option<Node>),
}

fn refused<T>(what: &'static str) -> Result<T, FormatError> {
    let (place, instead) = ("the document".to_owned(), "write one plain list `jobset` of maps");
    Err(FormatError::CannotSay { place, what, instead })
}

/// The first document.
fn document(text: &str) -> Result<Node, FormatError> {
    let mut open: Vec<OpenNode> = Vec::new();
    for event in Parser::new_from_str(text) {
        let done = match event?.0 {
            Event::SequenceStart(..) | Event::MappingStart(..) if open.len() == DEPTH_MAX => {
                return refused("such nesting");
            }
            Event::SequenceStart(..) => {
                open.push(OpenNode::List(Vec::new()));
                continue;
            }
            Event::MappingStart(..) => {
                open.push(OpenNode::Map(Vec::new(), None));
                continue;
            }
            Event::Scalar(text, ..) => Node::Scalar(text.into_owned()),
            Event::Alias(_) => return refused("an alias"),
            Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                Some(OpenNode::List(list)) => Node::List(list),
                Some(OpenNode::Map(map, _)) => Node::Map(map),
                None => return refused("an end without a begin"),
            },
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentStart(_) | Event::DocumentEnd => {
                continue;
            }
        };
        match open.last_mut() {
            None => return Ok(done),
            Some(OpenNode::List(list)) => list.push(done),
            Some(OpenNode::Map(map, key)) => match key.take() {
                Some(name) => map.push((name, done)),
                None => *key = Some(done),
            },
        }
    }
    refused("nothing")
}

impl Node {
    fn field(&self, name: &str) -> Option<&Self> {
        let Self::Map(map) = self else { return None };
        map.iter().find(|(key, _)| matches!(key, Self::Scalar(key) if key == name)).map(|(_, value)| value)
    }

    fn number(&self, place: &str) -> Result<u64, FormatError> {
        match self {
            Self::Scalar(text) => integer(place, text),
            Self::List(_) | Self::Map(_) => {
                let (value, expected) = ("a list or map".to_owned(), "a whole number");
                Err(FormatError::Value { place: place.to_owned(), value, expected })
            }
        }
    }
}

/// Reads a job set without precedences.
pub(super) fn read(text: &str) -> Result<Vec<ImportedJob>, FormatError> {
    let document = document(text)?;
    let Some(Node::List(list)) = document.field("jobset") else {
        return Err(FormatError::Missing { place: "the document".to_owned(), what: "list `jobset`" });
    };
    let mut jobs = Vec::new();
    for (number, node) in list.iter().enumerate() {
        let place = format!("job {} of the list", number + 1);
        let Node::Map(map) = node else { return Err(FormatError::Missing { place, what: "keys" }) };
        for (key, _) in map {
            let known = matches!(key, Node::Scalar(key) if KEYS.contains(&key.as_str()) || key == "Successors");
            if !known {
                let value = if let Node::Scalar(key) = key { excerpt(key) } else { "a list or map".to_owned() };
                return Err(FormatError::Value { place, value, expected: "a key of a job" });
            }
        }
        let mut values = [0; 8];
        for (value, key) in values.iter_mut().zip(KEYS) {
            let node = node.field(key).ok_or_else(|| FormatError::Missing { place: place.clone(), what: key })?;
            *value = node.number(&format!("{place}, `{key}`"))?;
        }
        let [task, job, first, last, least, most, deadline, priority] = values;
        let job = ImportedJob { task, job, arrival: (first, last), cost: (least, most), deadline, priority };
        match node.field("Successors") {
            None => {}
            Some(Node::List(list)) if list.is_empty() => {}
            Some(Node::Scalar(text)) if text.is_empty() || text == "~" => {}
            Some(_) => {
                let instead = "remove the precedence, or write the steps as a stream";
                return Err(FormatError::CannotSay { place, what: "a precedence between jobs", instead });
            }
        }
        jobs.push(checked(job, &place)?);
    }
    unique(&jobs)?;
    Ok(jobs)
}

/// Writes a job set.
pub(super) fn write(jobs: &[ImportedJob]) -> String {
    let mut text = "jobset:\n".to_owned();
    for job in jobs {
        let values =
            [job.task, job.job, job.arrival.0, job.arrival.1, job.cost.0, job.cost.1, job.deadline, job.priority];
        for (n, (key, value)) in KEYS.iter().zip(values).enumerate() {
            text.push_str(&format!("{}{key}: {value}\n", if n == 0 { "  - " } else { "    " }));
        }
    }
    text
}
