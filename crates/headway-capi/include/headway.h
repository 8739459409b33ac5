/* Headway for C and C++: copies of any memory on any stream, copies in time, and plans with a program's own data.
 *
 * Link with -lheadway (pkg-config: headway; CMake: find_package(headway), target headway::headway).
 * A thread that is in a function of this library must not be cancelled (pthread_cancel), nor left by longjmp.
 * Written by cbindgen from crates/headway-capi/src/lib.rs: `SNAPSHOTS=overwrite cargo test -p headway-capi`. */

#ifndef HEADWAY_H
#define HEADWAY_H

#include <stddef.h>
#include <stdint.h>

/*
 How a call ended.
 */
typedef enum headway_status {
  /*
   As it was to.
   */
  HEADWAY_STATUS_OK = 0,
  /*
   The copy has not ended yet.
   */
  HEADWAY_STATUS_NOT_READY = 1,
  /*
   Time is up, and what was asked for goes on.
   */
  HEADWAY_STATUS_TIMEOUT = 2,
  /*
   The caller's mistake: addresses, a stream that is being captured, a null pointer.
   */
  HEADWAY_STATUS_INVALID = 3,
  /*
   A limit is reached; try again when copies have ended.
   */
  HEADWAY_STATUS_REFUSED = 4,
  /*
   No driver, no GPU, or a driver that cannot do this.
   */
  HEADWAY_STATUS_UNAVAILABLE = 5,
  /*
   The driver or the GPU failed. Nothing is known of the destination.
   */
  HEADWAY_STATUS_FAILED = 6,
  /*
   A fault of Headway's.
   */
  HEADWAY_STATUS_INTERNAL = 7,
  /*
   What was asked for cannot be promised; nothing has changed.
   */
  HEADWAY_STATUS_NOT_PROMISED = 8,
} headway_status;

/*
 The way of a flow's copies.
 */
typedef enum headway_direction {
  /*
   From the host into the GPU.
   */
  HEADWAY_DIRECTION_IN = 0,
  /*
   From the GPU to the host.
   */
  HEADWAY_DIRECTION_OUT = 1,
} headway_direction;

/*
 What happens when a deadline passes.
 */
typedef enum headway_on_miss {
  /*
   The copy is completed, and counts as missed.
   */
  HEADWAY_ON_MISS_FINISH = 0,
  /*
   A copy that has not begun by its deadline is given up.
   */
  HEADWAY_ON_MISS_SKIP = 1,
  /*
   The flow takes no copies any more.
   */
  HEADWAY_ON_MISS_STOP = 2,
} headway_on_miss;

/*
 What runs a plan.
 */
typedef enum headway_backend {
  /*
   GPUs if there are some, else the simulation.
   */
  HEADWAY_BACKEND_AUTO = 0,
  /*
   Virtual time over the machine file.
   */
  HEADWAY_BACKEND_SIM = 1,
  /*
   Threads and memory of this computer, as slow as the machine file says.
   */
  HEADWAY_BACKEND_EMU = 2,
  /*
   The GPUs of this computer.
   */
  HEADWAY_BACKEND_CUDA = 3,
} headway_backend;

/*
 A copier for one GPU. Any thread may use it, several at a time.
 */
typedef struct headway_copier headway_copier;

/*
 A flow. Any thread may use it, several at a time.
 */
typedef struct headway_flow headway_flow;

/*
 A GPU's copy engines with what is promised on them. Any thread may use it, several at a time.
 */
typedef struct headway_node headway_node;

/*
 A plan that is ready to run, or has run.
 */
typedef struct headway_program headway_program;

/*
 A copy of a flow that was submitted. Any thread may use it, several at a time.
 */
typedef struct headway_flow_job headway_flow_job;

/*
 A copy that was queued. Any thread may use it, several at a time.
 */
typedef struct headway_ticket headway_ticket;

/*
 Urgent copies of one name, with memory for one of them. One thread at a time uses it.
 */
typedef struct headway_urgent headway_urgent;

/*
 What a copier may use. Set it with `headway_options_init`, then change what differs.
 */
typedef struct headway_options {
  /*
   Bytes of this structure, by which later versions know which fields there are.
   */
  size_t size;
  /*
   Threads of each of the two kinds of copies, those that wait and those that do not; 1 to 1,024.
   */
  uint32_t threads;
  /*
   Page-locked memory for copies that wait, in bytes.
   */
  uint64_t pinned_bytes;
  /*
   A copy that makes no progress for so many nanoseconds is given up. The call returns when the GPU has ended what it had begun; if it does
   not within ten minutes, the process is ended.
   */
  uint64_t patience_ns;
  /*
   Machine by name or file, whose profile says what copies cost; null = built-in figures.
   */
  const char *machine;
} headway_options;

/*
 What a copy did.
 */
typedef struct headway_report {
  /*
   Bytes copied.
   */
  uint64_t bytes;
  /*
   Nanoseconds that it took, without the wait for the stream; 0 for page-locked memory.
   */
  uint64_t nanoseconds;
  /*
   How it was made, as `headway explain` names methods; empty for page-locked memory.
   */
  char method[32];
} headway_report;

/*
 What is promised of a flow. Set it with `headway_contract_init`, then change what differs.
 */
typedef struct headway_contract {
  /*
   Bytes of this structure, by which later versions know which fields there are.
   */
  size_t size;
  /*
   For people; each of a node's flows has another one.
   */
  const char *name;
  /*
   0 = into the GPU, 1 = out of it.
   */
  uint32_t direction;
  /*
   The most that one copy moves.
   */
  uint64_t bytes;
  /*
   The least time between two copies, in nanoseconds.
   */
  uint64_t period_ns;
  /*
   From the call, or from when the stream has come to it, until the bytes are there, in nanoseconds.
   */
  uint64_t deadline_ns;
  /*
   0 = finish, 1 = skip, 2 = stop.
   */
  uint32_t on_miss;
} headway_contract;

/*
 What one copy of a flow did.
 */
typedef struct headway_flow_result {
  /*
   Nanoseconds from its release until the bytes were there.
   */
  uint64_t response_ns;
  /*
   What was promised, in nanoseconds.
   */
  uint64_t bound_ns;
  /*
   1 = the deadline was missed.
   */
  uint32_t missed;
  /*
   1 = it was given up before it began.
   */
  uint32_t given_up;
  /*
   What its time went into, or what broke the promise; a text that ends with 0.
   */
  char blame[256];
} headway_flow_result;

/*
 How a plan runs. Set it with `headway_run_options_init`, then change what differs.
 */
typedef struct headway_run_options {
  /*
   Bytes of this structure, by which later versions know which fields there are.
   */
  size_t size;
  /*
   0 = auto, 1 = sim, 2 = emu, 3 = cuda.
   */
  uint32_t backend;
  /*
   Use so many GPUs only; 0 = all.
   */
  uint32_t gpus;
  /*
   How long packets arrive, in nanoseconds; 0 = what the workload says.
   */
  uint64_t duration_ns;
  /*
   Machine by name or file; null = what fits the devices, and in simulations `h200-x4`.
   */
  const char *machine;
  /*
   The folder of the results; null = `out/NAME-BACKEND`.
   */
  const char *out;
  /*
   1 = run although the plan says that deadlines can be missed.
   */
  uint32_t force;
} headway_run_options;

/*
 A packet that a source is to fill. Times count from the run's time zero, in nanoseconds.
 */
typedef struct headway_source_packet {
  /*
   The stream's id; the text lives as long as the call.
   */
  const char *stream;
  /*
   Counted from 0.
   */
  uint64_t packet;
  /*
   When the plan counts with its arrival.
   */
  uint64_t arrives_ns;
  /*
   By when its bytes must be there.
   */
  uint64_t needed_ns;
  /*
   What is left until then; `UINT64_MAX` in a simulation, where time stands still.
   */
  uint64_t left_ns;
} headway_source_packet;

/*
 Fills `bytes` bytes from `to` on. What is not 0 ends the run. It must return: no `longjmp` out of it, no `pthread_exit`, no C++ exception.
 */
typedef int (*headway_source_function)(const struct headway_source_packet *packet,
                                       void *to,
                                       size_t bytes,
                                       void *context);

/*
 What became of a packet. Times count from the run's time zero, in nanoseconds.
 */
typedef struct headway_sink_packet {
  /*
   The stream's id; the text lives as long as the call.
   */
  const char *stream;
  /*
   Counted from 0.
   */
  uint64_t packet;
  /*
   When the plan counts with its arrival.
   */
  uint64_t arrived_ns;
  /*
   When its last step had ended.
   */
  uint64_t delivered_ns;
  /*
   By when that was due.
   */
  uint64_t deadline_ns;
} headway_sink_packet;

/*
 Gets `bytes` bytes from `from` on, which live as long as the call. What is not 0 ends the run. It must return, as a source must.
 */
typedef int (*headway_sink_function)(const struct headway_sink_packet *packet,
                                     const void *from,
                                     size_t bytes,
                                     void *context);

/*
 Something that happened in a run.
 */
typedef struct headway_event {
  /*
   When, in nanoseconds after the run's time zero.
   */
  uint64_t at_ns;
  /*
   A text that ends with 0.
   */
  char text[256];
} headway_event;

/*
 What an urgent copy did.
 */
typedef struct headway_urgent_result {
  /*
   Nanoseconds from the call until all bytes were there.
   */
  uint64_t response_ns;
  /*
   What was asked for, in nanoseconds from when the run took the request.
   */
  uint64_t deadline_ns;
  /*
   1 = it was promised.
   */
  uint32_t promised;
} headway_urgent_result;

/*
 What came of a run.
 */
typedef struct headway_run_result {
  /*
   Packets that were delivered or lost. Of a run that ended early, those that were under way or still to come are not among them.
   */
  uint64_t packets;
  /*
   Of these, delivered after their deadline.
   */
  uint64_t missed;
  /*
   Of these, never delivered.
   */
  uint64_t lost;
  /*
   1 = the run came to its end, and every deadline held, those of urgent copies and messages among them.
   */
  uint32_t held;
  /*
   1 = the run ended early, as after `headway_program_stop`.
   */
  uint32_t incomplete;
} headway_run_result;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 The version of the library, for people. The text lives as long as the program.
 */
const char *headway_version(void);

/*
 The text of the calling thread's last call that did not end with `HEADWAY_STATUS_OK` or `HEADWAY_STATUS_NOT_READY`. The text lives until
 this thread's next call of the library that fails.
 */
const char *headway_last_error(void);

/*
 Sets the defaults of a copier.

 # Safety
 `options` is null or points to a structure of the caller's.
 */
void headway_options_init(struct headway_options *options);

/*
 Opens a copier for GPU number `gpu` of the driver; -1 = the GPU whose primary context is current on the calling thread, or GPU 0 if there
 is none. `options` may be null. The current context stays as it is. On success `*copier` is the caller's, to be closed with
 `headway_copier_close`.

 # Safety
 `options` is null or was set by `headway_options_init`; `copier` points to a place for the result.
 */
enum headway_status headway_copier_open(int gpu,
                                        const struct headway_options *options,
                                        struct headway_copier **copier);

/*
 As `headway_copier_open`, for the GPU with a UUID as `nvidia-smi -L` prints it.

 # Safety
 The caller keeps the promise of `headway_copier_open`; `uuid` is a text that ends with 0.
 */
enum headway_status headway_copier_open_uuid(const char *uuid,
                                             const struct headway_options *options,
                                             struct headway_copier **copier);

/*
 Closes a copier; null is allowed. Waits some seconds at most for copies that were queued; what has not ended then goes on, and its tickets
 stay valid.

 # Safety
 `copier` is null or came from `headway_copier_open` and is not used by any thread any more.
 */
void headway_copier_close(struct headway_copier *copier);

/*
 Copies `bytes` bytes from `from` to `to`, of which one is memory of the copier's GPU and the other host memory, after all that `stream` (a
 `CUstream` or `cudaStream_t`; null = the legacy default stream) was given before. Returns when the bytes are there.
 `HEADWAY_STATUS_TIMEOUT`: the copy may go on, and uses page-locked memory and the GPU's until the stream has passed it. `report` may be null.

 # Safety
 Both ranges are the caller's for `bytes` bytes, and nobody writes the source or uses the destination until the copy has ended, but in the
 order of the stream. The stream is of the GPU's primary context.
 */
enum headway_status headway_copy(const struct headway_copier *copier,
                                 void *to,
                                 const void *from,
                                 size_t bytes,
                                 void *stream,
                                 struct headway_report *report);

/*
 Queues such a copy and returns at once. The copy begins after all that `stream` was given before, and what the stream is given later
 begins after the copy. The call waits only if the driver's queues are full: behind some gigabytes. On success `*ticket` is the
 caller's, to be freed with `headway_ticket_free`.

 # Safety
 The caller keeps the promise of `headway_copy`, until the ticket says that the copy has ended. `ticket` points to a place for the result.
 */
enum headway_status headway_copy_async(const struct headway_copier *copier,
                                       void *to,
                                       const void *from,
                                       size_t bytes,
                                       void *stream,
                                       struct headway_ticket **ticket);

/*
 Whether the copy has ended: `HEADWAY_STATUS_OK`, `HEADWAY_STATUS_NOT_READY`, or an error. Calls nothing of the driver.

 # Safety
 `ticket` came from `headway_copy_async`.
 */
enum headway_status headway_ticket_query(const struct headway_ticket *ticket);

/*
 Waits until the copy has ended, for `timeout_ns` nanoseconds at most (`HEADWAY_STATUS_TIMEOUT`; the copy goes on).

 # Safety
 The caller keeps the promise of `headway_ticket_query`.
 */
enum headway_status headway_ticket_wait(const struct headway_ticket *ticket,
                                        uint64_t timeout_ns);

/*
 Calls `then` once, on a thread of the library's, when the copy has ended. It must return soon (no `longjmp` out of it, no `pthread_exit`), and may call nothing of this library but
 `headway_last_error`. The ticket may be freed before.

 # Safety
 The caller keeps the promise of `headway_ticket_query`; `then` may be called with `context` on another thread.
 */
enum headway_status headway_ticket_when_done(const struct headway_ticket *ticket,
                                             void (*then)(enum headway_status status, void *context),
                                             void *context);

/*
 A descriptor that becomes readable when the copy has ended, for `poll` and `epoll`; the caller closes it. -1 = error.

 # Safety
 The caller keeps the promise of `headway_ticket_query`.
 */
int headway_ticket_descriptor(const struct headway_ticket *ticket);

/*
 Frees a ticket; null is allowed. The copy goes on, and its memory must stay until it has ended.

 # Safety
 `ticket` is null or came from `headway_copy_async` and is not used by any thread any more.
 */
void headway_ticket_free(struct headway_ticket *ticket);

/*
 Sets a contract that has no name, no bytes and no time yet.

 # Safety
 `contract` is null or points to a structure of the caller's.
 */
void headway_contract_init(struct headway_contract *contract);

/*
 Opens the node of a copier: there is one for each copier. `machine` names a machine file or a shipped machine, which says what copies
 cost at worst. On success `*node` is the caller's, to be closed with
 `headway_node_close`. The copier may be closed before.

 # Safety
 `copier` came from `headway_copier_open`; `machine` is a text that ends with 0; `node` points to a place for the result.
 */
enum headway_status headway_node_open(const struct headway_copier *copier,
                                      const char *machine,
                                      struct headway_node **node);

/*
 Has the broker at `socket` admit the flows of this node beside those of other programs; null = the usual place of brokers. Before the first
 flow, once. If the broker ends, flows are lost (`HEADWAY_STATUS_FAILED` for each copy): open them again.

 # Safety
 `node` came from `headway_node_open`; `socket` is null or a text that ends with 0.
 */
enum headway_status headway_node_share(const struct headway_node *node,
                                       const char *socket);

/*
 Closes a node; null is allowed. Its flows go on.

 # Safety
 `node` is null or came from `headway_node_open` and is not used by any thread any more.
 */
void headway_node_close(struct headway_node *node);

/*
 Opens a flow: from now on each of its copies ends within its deadline, or `HEADWAY_STATUS_NOT_PROMISED`, and `headway_last_error` says
 which flow would suffer and what would help. On success `*flow` is the caller's, to be closed with `headway_flow_close`.
 `HEADWAY_STATUS_TIMEOUT`: other promised copies kept the engine busy for ten seconds. `HEADWAY_STATUS_FAILED`: the broker ended meanwhile.
 After either, open the flow again.

 # Safety
 `node` came from `headway_node_open`; `contract` was set by `headway_contract_init`, and its name ends with 0; `flow` points to a place
 for the result.
 */
enum headway_status headway_flow_open(const struct headway_node *node,
                                      const struct headway_contract *contract,
                                      struct headway_flow **flow);

/*
 Closes a flow; null is allowed. Copies that were submitted are made, but for those that are held until the period allows them.

 # Safety
 `flow` is null or came from `headway_flow_open` and is not used by any thread any more.
 */
void headway_flow_close(struct headway_flow *flow);

/*
 The longest response that is promised now, in nanoseconds; 0 for null.

 # Safety
 `flow` is null or came from `headway_flow_open`.
 */
uint64_t headway_flow_bound(const struct headway_flow *flow);

/*
 Makes one copy of a flow on the calling thread, after all that `stream` was given before, and returns when the bytes are there. The host
 memory is pinned. A missed deadline is no error: the result says so. `result` may be null.

 # Safety
 The caller keeps the promise of `headway_copy`; `flow` came from `headway_flow_open`.
 */
enum headway_status headway_flow_copy(const struct headway_flow *flow,
                                      void *to,
                                      const void *from,
                                      size_t bytes,
                                      void *stream,
                                      struct headway_flow_result *result);

/*
 Has the flow's own thread make such a copy, and returns at once. What `stream` is given later does not wait for the copy. On success
 `*job` is the caller's, to be freed with `headway_flow_job_free`.

 # Safety
 The caller keeps the promise of `headway_copy` until the copy has ended; `flow` came from `headway_flow_open`; `job` points to a place
 for the result.
 */
enum headway_status headway_flow_submit(const struct headway_flow *flow,
                                        void *to,
                                        const void *from,
                                        size_t bytes,
                                        void *stream,
                                        struct headway_flow_job **job);

/*
 Waits until the copy has ended, for `timeout_ns` nanoseconds at most (`HEADWAY_STATUS_TIMEOUT`; the copy goes on). `result` may be null.

 # Safety
 `job` came from `headway_flow_submit`; `result` is null or points to a place for the result.
 */
enum headway_status headway_flow_job_wait(const struct headway_flow_job *job,
                                          uint64_t timeout_ns,
                                          struct headway_flow_result *result);

/*
 Frees a job; null is allowed. The copy goes on, and its memory must stay until it has ended.

 # Safety
 `job` is null or came from `headway_flow_submit` and is not used by any thread any more.
 */
void headway_flow_job_free(struct headway_flow_job *job);

/*
 Sets the usual options of a run.

 # Safety
 `options` is null or points to a structure of the caller's.
 */
void headway_run_options_init(struct headway_run_options *options);

/*
 Reads and plans the workload in the file `workload` (`headway plan` says the same of it), and opens its devices. `options` may be null. A
 plan whose deadlines can be missed is `HEADWAY_STATUS_NOT_PROMISED`, unless forced. On success `*program` is the caller's, to be closed with
 `headway_program_close`.

 # Safety
 `workload` is a text that ends with 0; `options` is null or was set by `headway_run_options_init`; `program` points to a place for
 the result.
 */
enum headway_status headway_program_open(const char *workload,
                                         const struct headway_run_options *options,
                                         struct headway_program **program);

/*
 Closes a program; null is allowed. In a forked child nothing is freed: its threads, and whoever held a lock, stayed in the parent.

 # Safety
 `program` is null or came from `headway_program_open` and is not used by any thread any more.
 */
void headway_program_close(struct headway_program *program);

/*
 Has `give` fill the packets of a stream, one after the other, on a thread of the library's. It is asked some packets ahead and may wait for
 its data. A packet that comes later than the plan needs it is late, and nobody else is.

 # Safety
 `program` came from `headway_program_open`; `stream` is a text that ends with 0; `give` may be called with `context` on another thread
 while the plan runs.
 */
enum headway_status headway_program_source(const struct headway_program *program,
                                           const char *stream,
                                           headway_source_function give,
                                           void *context);

/*
 Has `take` take what becomes of the packets of a stream, one after the other, on a thread of the library's; no file has them then. While
 results of several cycles wait for it, what comes is dropped and told as an event.

 # Safety
 The caller keeps the promise of `headway_program_source`, for `take`.
 */
enum headway_status headway_program_sink(const struct headway_program *program,
                                         const char *stream,
                                         headway_sink_function take,
                                         void *context);

/*
 Takes the next of the things that happened in the run (packets that are late or given up, urgent copies), and waits for it for `timeout_ns`
 nanoseconds at most: `HEADWAY_STATUS_TIMEOUT` if none comes, or the run is over. Events are kept from the first call on, which comes before
 the run (else `HEADWAY_STATUS_INVALID`) and may have no place for an event. While a thousand wait to be taken, more are lost.

 # Safety
 `program` came from `headway_program_open`; `event` is null or points to a place for the result.
 */
enum headway_status headway_program_event(const struct headway_program *program,
                                          uint64_t timeout_ns,
                                          struct headway_event *event);

/*
 Opens the urgent copies that the workload calls so, with memory for one of them, before the plan runs. On success `*urgent` is the
 caller's, to be freed with `headway_urgent_free`.

 # Safety
 `program` came from `headway_program_open`; `name` is a text that ends with 0; `urgent` points to a place for the result.
 */
enum headway_status headway_urgent_open(const struct headway_program *program,
                                        const char *name,
                                        size_t bytes,
                                        struct headway_urgent **urgent);

/*
 Where the memory begins from which and to which these copies go; host memory is page-locked. It lives until
 `headway_urgent_free`. Nobody uses it while a copy is under way.

 # Safety
 `urgent` came from `headway_urgent_open`; `from` and `to` point to places for the results.
 */
enum headway_status headway_urgent_memory(const struct headway_urgent *urgent,
                                          void **from,
                                          void **to);

/*
 Asks for an urgent copy of the first `bytes` bytes while the plan runs, on another thread than that one, and waits until they are there, for
 `timeout_ns` nanoseconds at most (`HEADWAY_STATUS_TIMEOUT`; the copy goes on). The deadline is the workload's. A copy for which somebody could
 miss a deadline is `HEADWAY_STATUS_NOT_PROMISED`, unless the workload says `otherwise = "best-effort"`. `result` may be null.

 # Safety
 `urgent` came from `headway_urgent_open`; `result` is null or points to a place for the result.
 */
enum headway_status headway_urgent_copy(const struct headway_urgent *urgent,
                                        size_t bytes,
                                        uint64_t timeout_ns,
                                        struct headway_urgent_result *result);

/*
 Frees urgent copies and their memory; null is allowed. The program may be closed before. In a forked child nothing is freed.

 # Safety
 `urgent` is null or came from `headway_urgent_open` and is not used by any thread any more.
 */
void headway_urgent_free(struct headway_urgent *urgent);

/*
 Runs the plan, once, and returns when it is over and the sinks have what was delivered. Missed deadlines are no error: the result says so.
 Files appear in the folder of the results. `result` may be null.

 # Safety
 `program` came from `headway_program_open`; `result` is null or points to a place for the result.
 */
enum headway_status headway_program_run(const struct headway_program *program,
                                        struct headway_run_result *result);

/*
 Has the run end early, from any thread; what it did until then is kept.

 # Safety
 `program` is null or came from `headway_program_open`.
 */
void headway_program_stop(const struct headway_program *program);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* HEADWAY_H */
