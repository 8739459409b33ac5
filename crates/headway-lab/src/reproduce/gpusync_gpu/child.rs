//! The process of one camera: it does what its parent orders, line by line, and ends with it.

use std::fs::OpenOptions;
use std::io;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::klt::TrackerShape;
use headway_broker::{Client, OnLoss, TaskShape};
use headway_core::decisions::sharing::ClusterId;
use headway_core::units::{Bytes, Nanos};
use headway_device::gpu::Gpu;
use headway_os::ipc::Words;
use headway_runtime::sharing::Sharing;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::child::{self, ChildRole};
use crate::reproduce::site::with_causes;
use crate::trackers::{Camera, Course, FrameLoad, GpuAssignment, Tracked, Video};
use headway::gpus;

/// What a camera is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Open {
    pub(super) cuda: bool,
    pub(super) machine: Option<String>,
    pub(super) gpus: usize,
    /// Width, height and slots.
    pub(super) shape: [usize; 3],
    pub(super) seed: u64,
    pub(super) pictures: usize,
    /// Frames compared with the CPU form.
    pub(super) check: u64,
    pub(super) video: Option<PathBuf>,
}

/// How GPUs are arbitrated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum How {
    /// A broker at this socket, and how long to look for an engine before sleeping.
    Broker { socket: PathBuf, look: Nanos },
    /// Nobody; the users of each GPU are counted in this memory file.
    Fewest(PathBuf),
    /// Nobody; this GPU.
    Fixed(u32),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Order {
    Open(Open),
    Load(FrameLoad),
    Run { course: Course, how: How },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Reply {
    Done,
    Tracked(Tracked),
    Failed(String),
}

/// Is a camera, until its parent goes.
pub(crate) fn serve() {
    let mut camera = None;
    for line in BufReader::new(io::stdin()).lines() {
        let Ok(line) = line else { break };
        let reply = match serde_json::from_str(&line) {
            // A reply is one line.
            Ok(order) => {
                obey(&mut camera, order).unwrap_or_else(|error| Reply::Failed(with_causes(&error).replace('\n', " ")))
            }
            Err(error) => Reply::Failed(error.to_string()),
        };
        let Ok(mut text) = serde_json::to_vec(&reply) else { break };
        text.push(b'\n');
        let mut out = io::stdout().lock();
        if out.write_all(&text).and_then(|()| out.flush()).is_err() {
            break;
        }
    }
}

fn obey(camera: &mut Option<Camera>, order: Order) -> Result<Reply, Error> {
    match order {
        Order::Open(open) => {
            *camera = Some(self::open(&open)?);
            Ok(Reply::Done)
        }
        Order::Load(load) => {
            let camera = camera.as_mut().ok_or(headway::Failure::Options("a camera is opened first"))?;
            camera.set_load(load)?;
            camera.warm_up()?;
            Ok(Reply::Done)
        }
        Order::Run { course, how } => {
            let camera = camera.as_mut().ok_or(headway::Failure::Options("a camera is opened first"))?;
            let tracked = run(camera, &course, &how)?;
            camera.reset()?;
            Ok(Reply::Tracked(tracked))
        }
    }
}

fn open(open: &Open) -> Result<Camera, Error> {
    let backend = if open.cuda { gpus::CopyBackend::Cuda } else { gpus::CopyBackend::Emu };
    let gpus: Vec<Arc<dyn Gpu>> = gpus::open(backend, open.machine.as_deref(), Some(open.gpus))?;
    let [width, height, slots] = open.shape;
    let wrong = |_| headway::Failure::Options("the tracker cannot have pictures of this size");
    let shape = TrackerShape::new(width, height, slots).map_err(wrong)?;
    let video = match &open.video {
        Some(path) => Video::read(&shape, path, open.seed.wrapping_mul(1_000), open.pictures)?,
        None => Video::synthetic(&shape, open.seed, open.pictures),
    };
    Camera::open(gpus, shape, video, FrameLoad::default(), open.check)
}

fn run(camera: &mut Camera, course: &Course, how: &How) -> Result<Tracked, Error> {
    let never = AtomicBool::new(false);
    // Operations tell how long engines took to change hands: there is nothing to tell without arbitration.
    let keep = matches!(how, How::Broker { .. });
    let mut with = |arbitration: &mut GpuAssignment<'_>| camera.run(course, arbitration, keep, &never);
    match how {
        How::Broker { socket, look } => {
            let client = Client::connect(socket, "camera", OnLoss::Fail).map_err(headway::Failure::Client)?;
            client.look_for(*look);
            let sharing = Sharing::by_broker(client);
            let shape = TaskShape {
                name: format!("camera {}", std::process::id()),
                cluster: ClusterId(0),
                period: Nanos(course.period),
                deadline: Nanos(course.period),
                state: Bytes(0),
                segments: Vec::new(),
                thread: Some(headway_os::ipc::this_thread()),
            };
            let task = sharing.register(shape).map_err(headway::Failure::Shared)?;
            Ok(with(&mut GpuAssignment::Managed(task))?)
        }
        How::Fewest(path) => {
            let failed = |source| headway::Failure::Read { path: path.clone(), source };
            let file = OpenOptions::new().read(true).write(true).open(path).map_err(failed)?;
            let words = Words::open(file.into(), 0, USERS)?;
            Ok(with(&mut GpuAssignment::Fewest(&words))?)
        }
        How::Fixed(gpu) => Ok(with(&mut GpuAssignment::Fixed(*gpu))?),
    }
}

/// Words that count users, one for each GPU.
pub(super) const USERS: usize = 64;

/// The processes of all cameras; they end when this is dropped.
pub(super) struct CameraProcesses(Vec<CameraProcess>);

struct CameraProcess {
    process: Child,
    orders: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
}

impl CameraProcesses {
    /// Starts `count` processes of this program.
    pub(super) fn start(count: usize) -> Result<Self, Error> {
        let failed = |source| Error::Load { source };
        let mut processes = Self(Vec::with_capacity(count));
        for _ in 0..count {
            let mut command = child::command(ChildRole::Camera, "").map_err(failed)?;
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
            let mut process = command.spawn().map_err(failed)?;
            let orders = process.stdin.take();
            let Some(stdout) = process.stdout.take() else {
                return Err(failed(io::Error::other("a process has no output")));
            };
            processes.0.push(CameraProcess { process, orders, replies: BufReader::new(stdout) });
        }
        Ok(processes)
    }

    /// Gives each camera among `of` its order, then waits for all of them.
    pub(super) fn order(&mut self, orders: &[(usize, Order)]) -> Result<Vec<Tracked>, Error> {
        for (camera, order) in orders {
            let lost = |reason: &dyn std::fmt::Display| Error::Camera { camera: *camera, reason: reason.to_string() };
            let mut text = serde_json::to_vec(order).map_err(|error| lost(&error))?;
            text.push(b'\n');
            let process = self.0.get_mut(*camera).ok_or_else(|| lost(&"there is no such camera"))?;
            let orders = process.orders.as_mut().ok_or_else(|| lost(&"it has ended"))?;
            orders.write_all(&text).and_then(|()| orders.flush()).map_err(|error| lost(&error))?;
        }
        // All are heard before any failure is told: nobody is left in the middle of an order.
        let replies: Vec<_> = orders.iter().map(|(camera, _)| (*camera, self.0[*camera].reply())).collect();
        let mut tracked = Vec::new();
        for (camera, reply) in replies {
            tracked.push(match reply {
                Ok(Reply::Done) => Tracked::default(),
                Ok(Reply::Tracked(tracked)) => tracked,
                Ok(Reply::Failed(reason)) => return Err(Error::Camera { camera, reason }),
                Err(error) => return Err(Error::Camera { camera, reason: error.to_string() }),
            });
        }
        Ok(tracked)
    }
}

impl CameraProcess {
    fn reply(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        if self.replies.read_line(&mut line)? == 0 {
            return Err(io::Error::other("its process has ended"));
        }
        serde_json::from_str(&line).map_err(io::Error::other)
    }
}

impl Drop for CameraProcesses {
    fn drop(&mut self) {
        // A closed pipe ends them in order; memory of GPUs takes its time.
        for process in &mut self.0 {
            process.orders = None;
        }
        for process in &mut self.0 {
            for _ in 0..500 {
                match process.process.try_wait() {
                    Ok(None) => std::thread::sleep(std::time::Duration::from_millis(10)),
                    _ => break,
                }
            }
            let _ = process.process.kill();
            let _ = process.process.wait();
        }
    }
}
