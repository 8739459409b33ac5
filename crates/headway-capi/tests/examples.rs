//! The header is what the code gives, and the examples in C and C++ build without a warning and run, on a driver without a GPU.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use tempfile::TempDir;

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_header_is_what_the_code_gives() {
    let config = cbindgen::Config::from_file(here().join("cbindgen.toml")).unwrap();
    let bindings = cbindgen::Builder::new().with_src(here().join("src/lib.rs")).with_config(config).generate().unwrap();
    let mut text = Vec::new();
    bindings.write(&mut text);
    let text = String::from_utf8(text).unwrap();
    snapbox::assert_data_eq!(text, snapbox::Data::read_from(&here().join("include/headway.h"), None).raw());
}

/// The shared library and the driver without a GPU; `None` without compilers.
struct Built {
    folder: TempDir,
    driver: PathBuf,
}

static BUILT: LazyLock<Option<Built>> = LazyLock::new(|| {
    if ["cc", "c++"].iter().any(|compiler| Command::new(compiler).arg("--version").output().is_err()) {
        println!("skipped: no compilers named `cc` and `c++`");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let programs = env::current_exe().unwrap().parent().unwrap().to_owned();
    let built = programs.join("libheadway_capi.so");
    assert!(built.exists(), "{} was not built", built.display());
    std::os::unix::fs::symlink(&built, folder.path().join("libheadway.so.0")).unwrap();
    std::os::unix::fs::symlink("libheadway.so.0", folder.path().join("libheadway.so")).unwrap();
    let driver = folder.path().join("libfake.so");
    let source = here().join("../headway-cuda/tests/fake/fake.c");
    run(Command::new("cc").args(["-shared", "-fPIC", "-O2", "-pthread", "-DSTREAMS", "-o"]).arg(&driver).arg(source));
    Some(Built { folder, driver })
});

#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{text}", output.status);
    text
}

/// Builds an example with warnings as errors.
fn example(built: &Built, compiler: &str, standard: &str, source: &str) -> Command {
    let folder = built.folder.path();
    let program = folder.join(format!("{source}.out"));
    run(Command::new(compiler)
        .args([standard, "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-I"])
        .arg(here().join("include"))
        .arg(here().join("examples").join(source))
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(folder)
        .args(["-lheadway", "-ldl"]));
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", folder).env("HEADWAY_LIBCUDA", &built.driver);
    command
}

/// A program of which `text` is the source, in its folder.
fn c_program(built: &Built, name: &str, text: &str) -> Command {
    let source = built.folder.path().join(name).with_extension("c");
    std::fs::write(&source, text).unwrap();
    let mut program = example(built, "cc", "-std=c11", source.to_str().unwrap());
    program.current_dir(built.folder.path());
    program
}

#[test]
fn the_example_in_c_copies_there_and_back() {
    let Some(built) = &*BUILT else { return };
    // A driver function comes as a data pointer: `dlsym` leaves no other way.
    let text = run(&mut example(built, "cc", "-std=c11", "copy.c"));
    assert!(text.contains("in: 20000000 bytes by `") && text.contains("out: the same bytes"), "{text}");
}

#[test]
fn the_example_in_cpp_copies_there_and_back() {
    let Some(built) = &*BUILT else { return };
    assert_eq!(run(&mut example(built, "c++", "-std=c++17", "copy.cpp")), "the same bytes\n");
}

#[test]
fn the_example_of_flows_copies_in_time_or_says_so_and_refuses_what_cannot_be_promised() {
    let Some(built) = &*BUILT else { return };
    let text = run(example(built, "cc", "-std=c11", "flow.c").env("MACHINE", "h200-x1"));
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("radar: `radar` is refused: ") && lines[0].contains("it would fit with"), "{text}");
    assert!(lines[1..4].iter().all(|line| line.starts_with("camera: ") && line.contains("on the engine")), "{text}");
    assert_eq!(lines[4], "the same bytes", "{text}");
}

#[test]
fn wrong_arguments_of_flows_are_errors_and_never_more() {
    let Some(built) = &*BUILT else { return };
    let mut program = c_program(
        built,
        "wrong",
        r#"
#include <headway.h>
#include <stdio.h>
int main(void) {
    headway_copier *copier = NULL;
    headway_node *node = NULL;
    headway_flow *flow = (headway_flow *)&flow;
    headway_flow_job *job = NULL;
    headway_contract contract;
    headway_contract_init(&contract);
    contract.name = "a";
    if (headway_copier_open(0, NULL, &copier)) return 1;
    printf("%d %d %d %d\n", headway_node_open(NULL, "h200-x1", &node), headway_node_open(copier, NULL, &node),
           headway_node_open(copier, "h200-x1", NULL), headway_node_open(copier, "/nowhere", &node));
    if (headway_node_open(copier, "h200-x1", &node)) return 1;
    printf("%d %d %d %d\n", headway_flow_open(NULL, &contract, &flow), headway_flow_open(node, NULL, &flow),
           headway_flow_open(node, &contract, NULL), headway_flow_open(node, &contract, &flow));
    contract.bytes = 4096, contract.period_ns = contract.deadline_ns = 1000000000;
    contract.direction = 7;
    int direction = headway_flow_open(node, &contract, &flow);
    contract.direction = 0, contract.on_miss = 9;
    int on_miss = headway_flow_open(node, &contract, &flow);
    contract.on_miss = 0, contract.size = 3;
    int size = headway_flow_open(node, &contract, &flow);
    contract.size = sizeof contract, contract.name = NULL;
    printf("%d %d %d %d %d\n", direction, on_miss, size, headway_flow_open(node, &contract, &flow), flow == NULL);
    contract.name = "a";
    if (headway_flow_open(node, &contract, &flow)) return 1;
    char bytes[64];
    printf("%d %d %d %d\n", headway_flow_copy(flow, bytes, bytes, 64, NULL, NULL), headway_flow_copy(NULL, bytes, bytes, 64, NULL, NULL),
           headway_flow_submit(flow, bytes, bytes, 64, NULL, NULL), headway_flow_job_wait(NULL, 1, NULL));
    if (headway_flow_submit(flow, bytes, bytes, 64, NULL, &job)) return 1;
    int first = headway_flow_job_wait(job, 60000000000ull, NULL);
    printf("%d %d\n", first, headway_flow_job_wait(job, 1, NULL));
    headway_flow_job_free(job);
    headway_flow_job_free(NULL);
    headway_node_close(node);
    headway_copier_close(copier);
    headway_flow_close(flow);
    headway_flow_close(NULL);
    headway_node_close(NULL);
    printf("%llu\n", (unsigned long long)headway_flow_bound(NULL));
    return 0;
}
"#,
    );
    let text = run(&mut program);
    assert_eq!(text, "3 3 3 3\n3 3 3 3\n3 3 3 3 1\n3 3 3 3\n3 6\n0\n");
}

/// A child that hangs is ended by its alarm.
#[test]
fn in_a_forked_child_every_call_returns_and_the_parent_goes_on() {
    let Some(built) = &*BUILT else { return };
    let mut program = c_program(
        built,
        "forked",
        r#"
#include <headway.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static void then(headway_status status, void *context) { (void)status, (void)context; }
int main(void) {
    headway_copier *copier = NULL, *none = (headway_copier *)&none;
    headway_node *node = NULL;
    headway_flow *flow = NULL;
    headway_flow_job *job = NULL, *other = NULL;
    headway_ticket *ticket = NULL, *second = NULL;
    headway_contract contract;
    int below = headway_copier_open(-2, NULL, &none);
    printf("%d %d\n", below, none == NULL);
    if (headway_copier_open(0, NULL, &copier) || headway_node_open(copier, "h200-x1", &node)) return 1;
    void *driver = dlopen(getenv("HEADWAY_LIBCUDA"), RTLD_NOW), *pinned = NULL;
    int (*allocate)(unsigned long long *, size_t), (*pin)(void **, size_t, unsigned);
    *(void **)&allocate = dlsym(driver, "cuMemAlloc_v2"), *(void **)&pin = dlsym(driver, "cuMemHostAlloc");
    int (*retain)(void **, int), (*set)(void *);
    *(void **)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain"), *(void **)&set = dlsym(driver, "cuCtxSetCurrent");
    void *context = NULL;
    unsigned long long device = 0;
    if (retain(&context, 0) || set(context) || allocate(&device, 1 << 20) || pin(&pinned, 1 << 20, 1)) return 1;
    headway_contract_init(&contract);
    contract.name = "a", contract.bytes = 4096, contract.period_ns = contract.deadline_ns = 1000000000;
    if (headway_flow_open(node, &contract, &flow)) return 1;
    /* The second copy waits for its period, so that it has not ended in the child. */
    for (int i = 0; i < 2; i++) {
        headway_flow_job_free(job);
        if (headway_flow_submit(flow, (void *)device, pinned, 4096, NULL, &job)) return 1;
    }
    if (headway_copy_async(copier, (void *)device, pinned, 1 << 20, NULL, &ticket)) return 1;
    /* The thread for callbacks is there in the parent. */
    if (headway_ticket_when_done(ticket, then, NULL) || headway_ticket_wait(ticket, 60000000000ull)) return 1;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        printf("%d %d %d\n", headway_flow_job_wait(job, UINT64_MAX, NULL), headway_flow_submit(flow, (void *)device, pinned, 4096, NULL, &other),
               headway_flow_copy(flow, (void *)device, pinned, 4096, NULL, NULL));
        printf("%d %d %d\n", headway_ticket_when_done(ticket, then, NULL), headway_ticket_descriptor(ticket),
               headway_copy_async(copier, (void *)device, pinned, 4096, NULL, &second));
        headway_flow_job_free(job);
        headway_flow_close(flow);
        headway_node_close(node);
        headway_copier_close(copier);
        exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    printf("%d %d %d\n", status, headway_flow_job_wait(job, 60000000000ull, NULL), headway_flow_copy(flow, (void *)device, pinned, 4096, NULL, NULL));
    return 0;
}
"#,
    );
    let text = run(&mut program);
    assert_eq!(text, "3 1\n5 5 5\n5 -1 5\n0 0 0\n");
}

const CAMERA: &str = r#"
name = "camera"
run = { duration = "330 ms" }
[[stream]]
id = "camera"
packet = "300 KiB"
period = "33 ms"
deadline = "30 ms"
steps = [{ copy = "host -> gpu" }, { copy = "gpu -> host" }]
[[urgent]]
id = "order"
from = "host"
to = "gpu0"
bytes = "64 KiB"
deadline = "20 ms"
otherwise = "best-effort"
"#;

#[test]
fn the_example_of_a_plan_gives_frames_takes_them_back_and_asks_for_an_urgent_copy() {
    let Some(built) = &*BUILT else { return };
    let workload = built.folder.path().join("camera.toml");
    std::fs::write(&workload, CAMERA).unwrap();
    for (backend, urgent) in [("1", "no urgent copies: a simulation"), ("2", "the order took ")] {
        let out = built.folder.path().join(format!("out-{backend}"));
        let mut program = example(built, "cc", "-std=c11", "plan.c");
        let text = run(program.arg(&workload).env("OUT", &out).env("BACKEND", backend));
        assert!(text.contains(urgent), "{text}");
        assert!(text.contains("\n10 frames, "), "{text}");
        assert!(text.contains("frame 3 is back after ") && text.contains(": 307200 bytes, the first is 03"), "{text}");
        assert!(out.join("plan.json").exists() && out.join("workload.toml").exists(), "{text}");
        if backend == "1" {
            assert!(text.contains("10 came back, deadlines held: 1"), "{text}");
        } else {
            assert!(text.contains("urgent copy 0 of `order` is there"), "{text}");
        }
    }
}

/// Children fork before the plan runs and while it does, with a thread of the parent in a call. One that hangs is ended by its alarm.
#[test]
fn in_a_forked_child_every_call_of_a_program_returns_and_the_parent_goes_on() {
    let Some(built) = &*BUILT else { return };
    let folder = built.folder.path();
    std::fs::write(folder.join("forked.toml"), CAMERA).unwrap();
    let mut program = c_program(
        built,
        "forked_program",
        r#"
#include <headway.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static headway_program *program;
static headway_urgent *urgent;
static int begun[2], goes_on[2];
static int give(const headway_source_packet *packet, void *to, size_t bytes, void *context) {
    char byte = 0;
    memset(to, 1, bytes);
    return context && packet->packet == 1 && (write(begun[1], &byte, 1) != 1 || read(goes_on[0], &byte, 1) != 1);
}
static int take(const headway_sink_packet *packet, const void *from, size_t bytes, void *context) {
    (void)packet, (void)from, (void)bytes, (void)context;
    return 0;
}
static void *hear(void *context) {
    headway_event event;
    (void)context;
    while (headway_program_event(program, UINT64_MAX, &event) == HEADWAY_STATUS_OK) {}
    return NULL;
}
static void *run(void *context) {
    headway_run_result result;
    *(int *)context = headway_program_run(program, &result);
    return NULL;
}
static int child(void) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        headway_event event;
        headway_run_result result;
        headway_urgent *other = NULL;
        void *from, *to;
        printf("%d %d %d ", headway_program_run(program, &result), headway_program_event(program, UINT64_MAX, &event),
               headway_urgent_copy(urgent, 64, UINT64_MAX, NULL));
        printf("%d %d %d ", headway_program_source(program, "camera", give, NULL), headway_program_sink(program, "camera", take, NULL),
               headway_urgent_open(program, "order", 64, &other));
        printf("%d ", headway_urgent_memory(urgent, &from, &to));
        printf("%s\n", headway_last_error());
        headway_program_stop(program);
        headway_urgent_free(urgent);
        headway_program_close(program);
        exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return status;
}
int main(void) {
    headway_run_options options;
    headway_run_options_init(&options);
    options.backend = HEADWAY_BACKEND_EMU, options.out = "forked";
    if (pipe(begun) || pipe(goes_on) || headway_program_open("forked.toml", &options, &program) ||
        headway_program_source(program, "camera", give, program) || headway_program_sink(program, "camera", take, NULL) ||
        headway_program_event(program, 0, NULL) || headway_urgent_open(program, "order", 64, &urgent))
        return 1;
    int before = child(), ran = -1;
    pthread_t runs, hears;
    char byte = 0;
    if (pthread_create(&runs, NULL, run, &ran) || pthread_create(&hears, NULL, hear, NULL) || read(begun[0], &byte, 1) != 1) return 1;
    int during = child();
    headway_event event;
    /* Another thread waits for events without a limit. */
    int heard = headway_program_event(program, 1000000, &event);
    if (headway_program_event(program, 0, NULL)) return 1;
    if (write(goes_on[1], &byte, 1) != 1 || pthread_join(runs, NULL) || pthread_join(hears, NULL)) return 1;
    headway_urgent_free(urgent);
    headway_program_close(program);
    printf("%d %d %d %d\n", before, during, ran, heard == HEADWAY_STATUS_OK || heard == HEADWAY_STATUS_TIMEOUT);
    return 0;
}
"#,
    );
    let text = run(&mut program);
    let lines: Vec<&str> = text.lines().collect();
    for child in &lines[..2] {
        assert!(child.starts_with("5 5 5 5 5 5 5 the program is not available: this process was forked"), "{text}");
    }
    assert_eq!(lines[2..], ["0 0 0 1"], "{text}");
}

#[test]
fn a_plan_that_promises_nothing_a_failing_callback_and_wrong_arguments_are_errors_and_never_more() {
    let Some(built) = &*BUILT else { return };
    let folder = built.folder.path();
    std::fs::write(folder.join("camera.toml"), CAMERA).unwrap();
    std::fs::write(folder.join("tight.toml"), CAMERA.replace("\"30 ms\"", "\"1 us\"")).unwrap();
    let mut program = c_program(
        built,
        "programs",
        r#"
#include <headway.h>
#include <stdio.h>
static int give(const headway_source_packet *packet, void *to, size_t bytes, void *context) {
    (void)to, (void)bytes, (void)context;
    return packet->packet == 4 && packet->left_ns == UINT64_MAX ? 9 : 0;
}
static int take(const headway_sink_packet *packet, const void *from, size_t bytes, void *context) {
    (void)from, (void)bytes;
    headway_program_stop(context);
    return packet->deadline_ns < packet->delivered_ns;
}
int main(void) {
    headway_program *program = (headway_program *)&program;
    headway_urgent *urgent = (headway_urgent *)&urgent;
    headway_event event;
    headway_run_options options;
    headway_run_result result;
    headway_run_options_init(&options);
    options.backend = 1, options.out = "wrong";
    printf("%d %d %d ", headway_program_open(NULL, &options, &program), headway_program_open("camera.toml", &options, NULL),
           headway_program_open("nowhere.toml", &options, &program));
    options.backend = 4;
    int backend = headway_program_open("camera.toml", &options, &program);
    options.backend = 1, options.size = 3;
    printf("%d %d %d\n", backend, headway_program_open("camera.toml", &options, &program), program == NULL);
    options.size = sizeof options;
    printf("%d ", headway_program_open("tight.toml", &options, &program));
    options.force = 1;
    printf("%d ", headway_program_open("tight.toml", &options, &program));
    headway_program_close(program);
    options.force = 0;
    if (headway_program_open("camera.toml", &options, &program)) return 1;
    printf("%d %d %d %d %d %d\n", headway_program_source(program, "camera", NULL, NULL), headway_program_source(program, "cam", give, NULL),
           headway_program_source(NULL, "camera", give, NULL), headway_program_sink(program, NULL, take, NULL),
           headway_program_event(NULL, 0, NULL), headway_program_run(NULL, NULL));
    printf("%d %d %d %d ", headway_urgent_open(program, "order", 64, &urgent), headway_urgent_open(program, NULL, 64, &urgent),
           headway_urgent_copy(NULL, 64, 1, NULL), headway_urgent_memory(NULL, (void **)&urgent, (void **)&urgent));
    printf("%d ", headway_program_source(program, "camera", give, NULL));
    printf("%d ", headway_program_source(program, "camera", give, NULL));
    int ran = headway_program_run(program, &result);
    printf("%d %d %s\n", urgent == NULL, ran, headway_last_error());
    printf("%d %d ", headway_program_run(program, &result), headway_program_sink(program, "camera", take, NULL));
    headway_program_close(program);
    if (headway_program_open("camera.toml", &options, &program)) return 1;
    printf("%d ", headway_program_sink(program, "camera", take, program));
    int status = headway_program_run(program, &result);
    printf("%d ", headway_program_event(program, UINT64_MAX, &event));
    printf("%d %u %d\n", status, result.incomplete, result.packets > 0 && result.packets < 10 && result.lost == 0);
    headway_program_close(program);
    headway_program_stop(NULL);
    headway_program_close(NULL);
    headway_urgent_free(NULL);
    return 0;
}
"#,
    );
    let text = run(&mut program);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "3 3 3 3 3 1", "{text}");
    assert_eq!(lines[1], "8 0 3 3 3 3 3 3", "{text}");
    assert!(
        lines[2].starts_with("3 3 3 3 0 3 1 6 the source of stream `camera` failed at packet 4: it returned 9"),
        "{text}"
    );
    assert_eq!(lines[3], "3 3 0 3 0 1 1", "{text}");
}

#[test]
fn errors_of_programs_name_the_thing_and_a_remedy() {
    let Some(built) = &*BUILT else { return };
    let folder = built.folder.path();
    std::fs::write(folder.join("texts.toml"), CAMERA).unwrap();
    let mut program = c_program(
        built,
        "texts",
        r#"
#include <headway.h>
#include <stdio.h>
static void tell(const char *file, uint32_t gpus, uint64_t duration_ns, const char *out) {
    headway_program *program = NULL;
    headway_run_options options;
    headway_run_options_init(&options);
    options.backend = HEADWAY_BACKEND_SIM, options.machine = "h200-x1", options.gpus = gpus, options.duration_ns = duration_ns, options.out = out;
    headway_status status = headway_program_open(file, &options, &program);
    if (status == HEADWAY_STATUS_OK) status = headway_program_run(program, NULL);
    printf("%d %s\n", (int)status, headway_last_error());
    headway_program_close(program);
}
int main(void) {
    tell("texts.toml", 9, 0, "texts");
    tell("texts.toml", 0, 1000000000000000000ull, "texts");
    tell("texts.toml", 0, 0, "/proc/nope/x");
    tell("nofile", 0, 0, "texts");
    return 0;
}
"#,
    );
    let text = run(&mut program);
    let said = [
        "3 machine `h200-x1` has 1 GPU, not 9; choose 1 GPU (`--gpus`), or another machine (`--machine`)",
        "3 random input for 1000000000 s of 1 stream would have 9309090909388800 bytes; choose a duration (`--duration`) for which it has between 1 and 1125899906842624, or give an input (`--input`)",
        "3 cannot create output folder `/proc/nope/x`: No such file or directory (os error 2); nothing was kept; choose another folder for the results (`--out`)",
        "3 cannot read `nofile`: No such file or directory (os error 2); check the path; it is taken from the current folder",
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), said);
}

#[test]
fn a_call_that_fails_while_a_thread_or_the_process_ends_is_an_error() {
    let Some(built) = &*BUILT else { return };
    let mut program = c_program(
        built,
        "ending",
        r#"
#include <headway.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
static pthread_key_t key;
static void fail(void) {
    headway_copier *copier = NULL;
    int status = headway_copier_open(-2, NULL, &copier);
    printf("%d %d\n", status, headway_last_error()[0] != 0);
}
static void late(void *value) { (void)value, fail(); }
static void *work(void *nothing) { return pthread_setspecific(key, &key), fail(), nothing; }
int main(void) {
    pthread_t thread;
    if (atexit(fail) || pthread_key_create(&key, late) || pthread_create(&thread, NULL, work, NULL)) return 1;
    pthread_join(thread, NULL);
    fail();
    return 0;
}
"#,
    );
    assert_eq!(run(&mut program), "3 1\n".repeat(4));
}

#[test]
fn a_missing_driver_is_an_error_with_its_remedy() {
    let Some(built) = &*BUILT else { return };
    let mut program = c_program(
        built,
        "missing",
        r#"
#include <headway.h>
#include <stdio.h>
int main(void) {
    headway_copier *copier = (headway_copier *)&copier;
    headway_options options;
    headway_options_init(&options);
    int status = headway_copier_open(0, &options, &copier);
    printf("%d %d %s\n", status, copier == NULL, headway_last_error());
    options.size = 3;
    status = headway_copier_open(0, &options, &copier);
    printf("%d %s\n", status, headway_last_error());
    printf("%d %d %d %d\n", headway_copier_open(0, NULL, NULL), headway_copy(NULL, NULL, NULL, 0, NULL, NULL),
           headway_ticket_query(NULL), headway_ticket_descriptor(NULL));
    headway_copier_close(NULL);
    headway_ticket_free(NULL);
    return 0;
}
"#,
    );
    let text = run(program.env("HEADWAY_LIBCUDA", "/nowhere/libcuda.so"));
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("5 1 ") && lines[0].contains("/nowhere/libcuda.so"), "{text}");
    assert!(lines[1].starts_with("3 ") && lines[1].contains("headway_options_init"), "{text}");
    assert_eq!(lines[2], "3 3 3 -1", "{text}");
}

#[test]
fn of_options_of_another_version_only_the_size_is_read() {
    let Some(built) = &*BUILT else { return };
    let mut program = c_program(
        built,
        "older",
        r#"
#include <headway.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
int main(void) {
    headway_copier *copier = NULL;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED || mprotect(pages + page, page, PROT_NONE)) return 1;
    size_t *size = (size_t *)(pages + page) - 1;
    *size = sizeof *size;
    int status = headway_copier_open(0, (headway_options *)size, &copier);
    printf("%d %s\n", status, headway_last_error());
    return 0;
}
"#,
    );
    let text = run(&mut program);
    assert!(text.starts_with("3 options.size"), "{text}");
}

#[test]
fn tickets_of_a_copier_that_was_closed_still_tell_of_the_end() {
    let Some(built) = &*BUILT else { return };
    let example = here().join("examples/copy.c");
    let mut program = c_program(
        built,
        "closed",
        &format!(
            r#"
#define main example
#include "{}"
#undef main
int main(void) {{
    void *context = NULL, *stream = NULL;
    unsigned long long there = 0;
    static unsigned char data[1 << 20];
    headway_copier *copier = NULL;
    headway_ticket *ticket = NULL;
    driver = dlopen(getenv("HEADWAY_LIBCUDA"), RTLD_NOW);
    if (example() || ((Retain)function("cuDevicePrimaryCtxRetain"))(&context, 0) || ((SetCurrent)function("cuCtxSetCurrent"))(context) ||
        ((Allocate)function("cuMemAlloc_v2"))(&there, sizeof data) || ((CreateStream)function("cuStreamCreate"))(&stream, 1))
        return 1;
    check(headway_copier_open(-1, NULL, &copier), "open");
    check(headway_copy_async(copier, (void *)there, data, sizeof data, stream, &ticket), "copy_async");
    headway_copier_close(copier);
    struct pollfd event = {{headway_ticket_descriptor(ticket), POLLIN, 0}};
    if (event.fd < 0 || poll(&event, 1, 60000) != 1)
        return 2;
    check(headway_ticket_query(ticket), "query");
    headway_ticket_free(ticket);
    printf("told\n");
    return 0;
}}
"#,
            example.display()
        ),
    );
    let text = run(&mut program);
    assert!(text.ends_with("told\n"), "{text}");
}

#[test]
fn the_functions_of_the_header_are_exported_and_nothing_else() {
    let Some(built) = &*BUILT else { return };
    let Ok(_) = Command::new("nm").arg("--version").output() else { return println!("skipped: no `nm`") };
    let text = run(Command::new("nm").args(["-D", "--defined-only"]).arg(built.folder.path().join("libheadway.so.0")));
    let mut exported: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    exported.sort_unstable();
    let header = std::fs::read_to_string(here().join("include/headway.h")).unwrap();
    let name = |line: &str| {
        let before = line.split_once('(')?.0.rsplit([' ', '*']).next()?.to_owned();
        before.starts_with("headway_").then_some(before)
    };
    let mut declared: Vec<String> = header.lines().filter(|line| !line.starts_with(' ')).filter_map(name).collect();
    declared.sort_unstable();
    assert!(declared.len() > 10, "{declared:?}");
    assert_eq!(exported, declared);
}
