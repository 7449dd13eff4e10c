// The C API of the simulated accelerator: what a chip vendor's SDK gives you before any PyTorch is involved.
//
// The calls have the shape of the CUDA, HIP and ACL runtimes, so that you can map them one by one to your own SDK.
// Rules that hold for all of them:
//
//  * A call returns cookbookSuccess or the reason of its failure; it never throws and never aborts. The longer text
//    (sizes, names) is kept for the calling thread: cookbookGetLastErrorMessage().
//  * Work (kernels, copies, fills, host functions) is queued on a stream and runs later, in the stream's order, on the
//    stream's own thread or on a host thread that waits for the stream. A failure there is *sticky*: the device keeps
//    it, drops the work that is queued behind, and every synchronization and launch from then on returns it, until
//    cookbookDeviceReset().
//  * Device memory cannot be read or written by the host: its addresses are reserved and have no access rights. Only a
//    kernel that runs on the memory's own device can translate an address (cookbookTranslate).
//  * Every call may be made from any thread. The current device is a thread's own; a new thread starts on device 0.
//  * No call takes Python's GIL, none calls back under a lock of the driver. Calls that may block say so.
//  * After fork() the child has no worker threads: if the parent had made a context on any device, every call in the
//    child returns cookbookErrorForked (cookbookGetDeviceCount and the error calls apart).
//  * The environment is read once, by the first call. When a variable cannot be understood every call returns
//    cookbookErrorInvalidValue, cookbookGetDeviceCount included, and the message names the variable.
#ifndef COOKBOOK_DRIVER_H
#define COOKBOOK_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#if defined(COOKBOOK_DRIVER_BUILD)
#define COOKBOOK_API __attribute__((visibility("default")))
#else
#define COOKBOOK_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define COOKBOOK_DRIVER_VERSION 100 /* major * 100 + minor */

// ---- errors --------------------------------------------------------------------------------------------------------

typedef enum cookbookError {
  cookbookSuccess = 0,
  cookbookErrorInvalidValue = 1,    // an argument is out of range or null
  cookbookErrorOutOfMemory = 2,     // the device's (or the host's pinned) memory is used up
  cookbookErrorNotReady = 3,        // a query: the work has not finished; no failure
  cookbookErrorInvalidDevice = 4,   // no device has this index
  cookbookErrorNoDevice = 5,        // the machine has no device at all
  cookbookErrorInvalidHandle = 6,   // a stream or event that was destroyed or belongs to another device, or a handle
                                    // of another process that cannot be opened
  cookbookErrorInvalidAddress = 7,  // not a pointer that this driver gave out
  cookbookErrorLaunchFailure = 8,   // sticky: a kernel reported a failure
  cookbookErrorIllegalAddress = 9,  // sticky: a kernel used an address that is not on its device
  cookbookErrorForked = 10,         // the process was forked after the driver was used
  cookbookErrorNotSupported = 11,   // known to the API, not to this device
  cookbookErrorStreamCaptureUnsupported = 12,  // the call may not be made during a capture, which is invalid now
  cookbookErrorStreamCaptureInvalidated = 13,  // an earlier call has made the capture invalid
  cookbookErrorStreamCaptureUnjoined = 14,     // a branch of the capture was not joined before its end
  cookbookErrorUnknown = 999
} cookbookError_t;

// The enumerator's spelling and one sentence; static strings, never null.
COOKBOOK_API const char* cookbookGetErrorName(cookbookError_t error);
COOKBOOK_API const char* cookbookGetErrorString(cookbookError_t error);
// The text of this thread's last failed call, with its details ("device 0: 4.00 GiB asked, ..."); valid until this
// thread's next failing call. Empty when none failed.
COOKBOOK_API const char* cookbookGetLastErrorMessage(void);

// ---- devices -------------------------------------------------------------------------------------------------------

typedef struct cookbookDeviceProperties {
  char name[64];              // COOKBOOK_DEVICE_NAME, default "Cookbook Simulated Accelerator"
  size_t total_memory;        // bytes; COOKBOOK_DEVICE_MEMORY (suffix K, M or G), default 4 GiB
  int major, minor;           // capability
  int stream_priority_least;  // priorities as in CUDA: a smaller number is more urgent
  int stream_priority_greatest;
} cookbookDeviceProperties;

// COOKBOOK_DEVICE_COUNT, default 2, at most 16. Count 0 is a machine without a device: this call succeeds.
// Creates no context and starts no thread.
COOKBOOK_API cookbookError_t cookbookGetDeviceCount(int* count);
COOKBOOK_API cookbookError_t cookbookGetDevice(int* device);
COOKBOOK_API cookbookError_t cookbookSetDevice(int device);
COOKBOOK_API cookbookError_t cookbookGetDeviceProperties(cookbookDeviceProperties* properties, int device);
// 1 when the device has been used (memory, stream or event made), else 0. Never creates the context.
COOKBOOK_API cookbookError_t cookbookDeviceHasContext(int device, int* has_context);
// 1 in a child that was forked after the parent used the driver.
COOKBOOK_API int cookbookIsForkedChild(void);
// Blocks until all work queued so far on all streams of `device` has finished. Returns the sticky error if there is
// one.
COOKBOOK_API cookbookError_t cookbookDeviceSynchronize(int device);
// Blocks until the streams are idle (work behind a failure was dropped), then forgets the sticky error. Memory, streams
// and events stay valid; what kernels after the failure should have written was not written.
COOKBOOK_API cookbookError_t cookbookDeviceReset(int device);
// Returns the sticky error without waiting for anything.
COOKBOOK_API cookbookError_t cookbookDevicePeekError(int device);
// Blocks until all streams of all devices are idle and joins their threads. The driver stays usable: a later launch
// starts a thread again. For exit handlers.
COOKBOOK_API cookbookError_t cookbookShutdown(void);

// ---- streams -------------------------------------------------------------------------------------------------------

// An in-order queue of one device. A null handle means the default stream of the *current* device. A stream's thread is
// started by its first launch.
typedef struct cookbookStream* cookbookStream_t;

COOKBOOK_API cookbookError_t cookbookGetDefaultStream(cookbookStream_t* stream, int device);
// On the current device, which has at most 1024 streams. Priority is clamped to the device's range; a more urgent
// stream's thread gets a better nice value where the process may ask for one, a host thread that helps keeps its own.
COOKBOOK_API cookbookError_t cookbookStreamCreate(cookbookStream_t* stream, int priority);
// Work that is queued still runs; blocks until it has. The default stream cannot be destroyed.
COOKBOOK_API cookbookError_t cookbookStreamDestroy(cookbookStream_t stream);
COOKBOOK_API cookbookError_t cookbookStreamGetDevice(cookbookStream_t stream, int* device);
COOKBOOK_API cookbookError_t cookbookStreamGetPriority(cookbookStream_t stream, int* priority);
// cookbookSuccess when everything queued so far has finished (not merely left the queue), else cookbookErrorNotReady.
COOKBOOK_API cookbookError_t cookbookStreamQuery(cookbookStream_t stream);
// Blocks. The calling thread may run the queue itself.
COOKBOOK_API cookbookError_t cookbookStreamSynchronize(cookbookStream_t stream);

// ---- events --------------------------------------------------------------------------------------------------------

typedef struct cookbookEvent* cookbookEvent_t;
enum { cookbookEventDefault = 0, cookbookEventTiming = 1, cookbookEventInterprocess = 2 };

// On the current device; may be recorded on streams of that device only, and waited for on streams of any device.
// `flags` is one of the three.
COOKBOOK_API cookbookError_t cookbookEventCreate(cookbookEvent_t* event, unsigned flags);
// Never blocks: a wait or a record that is queued keeps what it needs.
COOKBOOK_API cookbookError_t cookbookEventDestroy(cookbookEvent_t event);
// Makes a new version of the event: "all that is queued on `stream` now". Waits for older versions keep waiting for
// those. Recording again before the last version has finished is legal. Recording and waiting work on a failed device
// too: the version finishes when the work before it has been dropped.
COOKBOOK_API cookbookError_t cookbookEventRecord(cookbookEvent_t event, cookbookStream_t stream);
// cookbookSuccess when never recorded or when the newest version has finished, else cookbookErrorNotReady.
COOKBOOK_API cookbookError_t cookbookEventQuery(cookbookEvent_t event);
// Blocks until the version that is the newest at the time of the call has finished.
COOKBOOK_API cookbookError_t cookbookEventSynchronize(cookbookEvent_t event);
// Work queued on `stream` later starts after the version that is the newest now. No effect when never recorded.
COOKBOOK_API cookbookError_t cookbookStreamWaitEvent(cookbookStream_t stream, cookbookEvent_t event);
// Milliseconds of device time between the newest versions of two timing events; both must have finished
// (cookbookErrorNotReady), be made with cookbookEventTiming, have been recorded and be of one device (else
// cookbookErrorInvalidHandle).
COOKBOOK_API cookbookError_t cookbookEventElapsedTime(float* milliseconds, cookbookEvent_t begin, cookbookEvent_t end);

// ---- memory --------------------------------------------------------------------------------------------------------

// On the current device, aligned to 512 bytes. Size 0 gives a null pointer. Contents are undefined. May block: before
// it gives up it waits for blocks that were freed in stream order.
COOKBOOK_API cookbookError_t cookbookMalloc(void** pointer, size_t bytes);
// Blocks until the memory's device is idle, as cudaFree does, since a queued kernel may still use the block. Null is
// fine. The block is freed also when the call returns the device's sticky error.
COOKBOOK_API cookbookError_t cookbookFree(void* pointer);
// On the stream's device, in stream order: the block may be used by work queued on `stream` from now on. Never waits
// for the device; when only blocks that other streams have not passed yet could serve, it makes `stream` wait for them.
COOKBOOK_API cookbookError_t cookbookMallocAsync(void** pointer, size_t bytes, cookbookStream_t stream);
// The block is free for others once the work queued so far on `stream` has run: at once for the same stream. A null
// stream means the default stream of the *memory's* device here; a stream of another device than the memory's is
// cookbookErrorInvalidHandle.
COOKBOOK_API cookbookError_t cookbookFreeAsync(void* pointer, cookbookStream_t stream);
// Host memory that the device can copy from and to without staging. Size 0 gives a null pointer. Freeing blocks until
// all devices are idle.
COOKBOOK_API cookbookError_t cookbookMallocHost(void** pointer, size_t bytes);
COOKBOOK_API cookbookError_t cookbookFreeHost(void* pointer);
// Bytes that are not allocated, and the device's capacity.
COOKBOOK_API cookbookError_t cookbookMemGetInfo(size_t* free_bytes, size_t* total_bytes, int device);

typedef struct cookbookMemoryStats {
  uint64_t allocations, frees;  // successful calls since the last reset
  uint64_t out_of_memory;       // failed calls since the last reset
  uint64_t live_blocks, live_blocks_peak;
  uint64_t live_bytes, live_bytes_peak;            // bytes in use, rounded as the device rounds
  uint64_t requested_bytes, requested_bytes_peak;  // bytes in use, as asked for
  uint64_t allocated_bytes_total, freed_bytes_total;
  uint64_t requested_bytes_total, requested_freed_total;
} cookbookMemoryStats;
COOKBOOK_API cookbookError_t cookbookMemGetStats(cookbookMemoryStats* stats, int device);
// `peaks`: the peaks become the current values. `totals`: the counts and totals become 0.
COOKBOOK_API cookbookError_t cookbookMemResetStats(int device, int peaks, int totals);

typedef enum cookbookMemoryType {
  cookbookMemoryUnregistered = 0,  // ordinary (pageable) host memory, or no memory at all
  cookbookMemoryHost = 1,          // from cookbookMallocHost
  cookbookMemoryDevice = 2
} cookbookMemoryType;
typedef struct cookbookPointerAttributes {
  cookbookMemoryType type;
  int device;    // owner of device memory, else -1
  void* base;    // start of the block that holds the pointer, null when unregistered
  size_t bytes;  // size of that block, as asked for
} cookbookPointerAttributes;
// Any pointer is fine, also into the middle of a block and also one the driver never saw.
COOKBOOK_API cookbookError_t cookbookPointerGetAttributes(cookbookPointerAttributes* attributes, const void* pointer);

typedef enum cookbookMemcpyKind {
  cookbookMemcpyHostToHost = 0,
  cookbookMemcpyHostToDevice = 1,
  cookbookMemcpyDeviceToHost = 2,
  cookbookMemcpyDeviceToDevice = 3,  // same or other device
  cookbookMemcpyDefault = 4          // told from the addresses
} cookbookMemcpyKind;
// Queues the copy on `stream`. With pinned host memory it returns at once and the caller keeps the memory until the
// copy has run; with pageable host memory it blocks until the copy has run. A copy to another device is ordered on
// `stream` only: order the other device's streams with events. A device side must lie in one block, within the size
// asked for (else cookbookErrorInvalidAddress); a kind that the addresses contradict is cookbookErrorInvalidValue.
COOKBOOK_API cookbookError_t cookbookMemcpyAsync(void* dst, const void* src, size_t bytes, cookbookMemcpyKind kind,
                                                 cookbookStream_t stream);
// Queues the copy on `stream` and always blocks until it has run.
COOKBOOK_API cookbookError_t cookbookMemcpy(void* dst, const void* src, size_t bytes, cookbookMemcpyKind kind,
                                            cookbookStream_t stream);
COOKBOOK_API cookbookError_t cookbookMemsetAsync(void* pointer, int value, size_t bytes, cookbookStream_t stream);

// ---- memory and events of other processes --------------------------------------------------------------------------

// A block's name for other processes of the same user: plain bytes, to be sent as the two processes like.
typedef struct cookbookIpcMemHandle {
  unsigned char bytes[64];
} cookbookIpcMemHandle_t;

// Names the block that holds `pointer`; the block is not changed, and a second call gives the same handle. The
// pointer's distance to the block's start does not travel: send it along (cookbookPointerGetAttributes has the start).
// A block that was itself opened from another process cannot be passed on (cookbookErrorInvalidAddress).
COOKBOOK_API cookbookError_t cookbookIpcGetMemHandle(cookbookIpcMemHandle_t* handle, void* pointer);
// Maps the block without a copy. `pointer`, its start, is from then on a device pointer of this process that kernels
// and copies may use. `device` must be the block's own, since memory does not move: the device with the same index. A
// block that is open already has the same address again, and must be closed as often as it was opened.
//
// The two processes' streams know nothing of each other: order them with an interprocess event, or synchronize before
// the handle is sent. The producer may free the block only when all have closed it; if it frees earlier, those who have
// it open read and write what is allocated there next, but no other's memory becomes invalid. When the producer ends,
// the block stays valid for those who have it open. An open block takes nothing of this process's device memory, but
// keeps the producer's from the system.
//
// cookbookErrorInvalidHandle: no handle, the process's own one, a block that was freed, a producer that has ended or
// belongs to another user. cookbookErrorInvalidDevice: another device than the block's.
COOKBOOK_API cookbookError_t cookbookIpcOpenMemHandle(void** pointer, const cookbookIpcMemHandle_t* handle, int device);
// `pointer` is what cookbookIpcOpenMemHandle gave. Blocks until all devices are idle, since a queued kernel may still
// use the block; with the last close its addresses become invalid.
COOKBOOK_API cookbookError_t cookbookIpcCloseMemHandle(void* pointer);

typedef struct cookbookIpcEventHandle {
  unsigned char bytes[64];
} cookbookIpcEventHandle_t;

// Names an event that was made with cookbookEventInterprocess.
COOKBOOK_API cookbookError_t cookbookIpcGetEventHandle(cookbookIpcEventHandle_t* handle, cookbookEvent_t event);
// Opens it, for the current device: it may be waited for, queried and synchronized with here, and is destroyed like any
// event. Only the process that made it records it (cookbookErrorNotSupported here). The newest version is the newest at
// the time of the call, over both processes; it counts as finished when all versions before it have finished too.
// Destroying the event in the process that made it leaves queued waits as they are. When that process ends before a
// version has finished, those who wait for it are told: cookbookEventSynchronize returns cookbookErrorInvalidHandle, a
// stream's device fails with cookbookErrorLaunchFailure, since the work behind the wait must not run.
COOKBOOK_API cookbookError_t cookbookIpcOpenEventHandle(cookbookEvent_t* event, const cookbookIpcEventHandle_t* handle);

// ---- kernels -------------------------------------------------------------------------------------------------------

// What a running kernel knows. Only the driver makes one.
typedef struct cookbookKernelContext {
  int device;
  uintptr_t base;     // first address of the device's own memory
  size_t size;        // bytes of the device's own memory
  intptr_t to_store;  // store address - device address
  char message[256];  // why the kernel failed; read when `run` returns a failure
} cookbookKernelContext;

// A static object a kernel. `run` gets a copy of the launch's arguments, 16-byte aligned; it must not throw and must
// not call the driver (cookbookTranslate apart). It leaves its arguments as they are: a graph runs it again with the
// same bytes.
typedef struct cookbookKernel {
  const char* name;
  cookbookError_t (*run)(cookbookKernelContext* context, void* args);
} cookbookKernel_t;

enum { cookbookMaxKernelArgs = 65536 };

// Copies `bytes` of arguments into the queue and returns. Blocks only while the stream's queue (1 MiB) is full.
// The arguments hold addresses and numbers, nothing that must be destroyed.
COOKBOOK_API cookbookError_t cookbookLaunchKernel(cookbookStream_t stream, const cookbookKernel_t* kernel,
                                                  const void* args, size_t bytes);
// `function` runs in stream order. It must not call the driver or throw. Behind a failure it is dropped like other
// work: do not leave the freeing of `user_data` to it alone.
COOKBOOK_API cookbookError_t cookbookLaunchHostFunc(cookbookStream_t stream, void (*function)(void*), void* user_data);

// cookbookTranslate() for what is not the device's own memory: null unless the range lies in one block that was opened
// from another process.
COOKBOOK_API void* cookbookTranslateOpened(const cookbookKernelContext* context, const void* pointer, size_t bytes);
// The address at which a kernel of this device may touch device memory; null when [pointer, pointer + bytes) is not
// inside its device: return cookbookErrorIllegalAddress then.
static inline void* cookbookTranslate(const cookbookKernelContext* context, const void* pointer, size_t bytes) {
  const uintptr_t offset = (uintptr_t)pointer - context->base;
  if (offset > context->size || bytes > context->size - offset) return cookbookTranslateOpened(context, pointer, bytes);
  return (void*)((intptr_t)pointer + context->to_store);
}
// Writes to `message` and returns `error`: `return cookbookKernelFail(context, cookbookErrorLaunchFailure, "...")`.
COOKBOOK_API cookbookError_t cookbookKernelFail(cookbookKernelContext* context, cookbookError_t error,
                                                const char* message);
// 1 on a thread that the driver made to run a stream, 0 on a host thread (also while it helps).
COOKBOOK_API int cookbookOnStreamThread(void);

// ---- graphs --------------------------------------------------------------------------------------------------------

// Work that was recorded instead of run, and the same work made ready to be launched, as often as you like. The objects
// may be used from any thread, one at a time.
typedef struct cookbookGraph* cookbookGraph_t;
typedef struct cookbookGraphExec* cookbookGraphExec_t;

// Who may not make calls that concern a whole device while one of its streams is captured: cookbookDeviceSynchronize,
// cookbookDeviceReset, cookbookFree, cookbookFreeHost, cookbookIpcCloseMemHandle, and work on its default stream.
typedef enum cookbookCaptureMode {
  cookbookCaptureGlobal = 0,       // nobody
  cookbookCaptureThreadLocal = 1,  // the thread that began the capture
  cookbookCaptureRelaxed = 2       // everybody may
} cookbookCaptureMode;
typedef enum cookbookCaptureStatus {
  cookbookCaptureNone = 0,
  cookbookCaptureActive = 1,
  cookbookCaptureInvalidated = 2
} cookbookCaptureStatus;

// From now on kernels, host functions, fills, and copies with device or pinned memory that any thread pushes to
// `stream` are recorded and do not run. What was queued before runs as ever. A device's default stream cannot be
// captured.
//
//  * Another stream of the device, not the default one, joins when it waits for an event that was recorded in the
//    capture. What it does from then on must be joined back before the end: by an event on it that a stream waits for
//    which is joined itself or is the first.
//  * Arguments are copied. Memory that they point to is not, and must be there whenever the graph runs.
//  * What cannot be recorded is an error and makes the capture invalid: to synchronize, query or destroy a captured
//    stream, or an event that was recorded in the capture; copies that wait (cookbookMemcpy, pageable memory);
//    cookbookMallocAsync and cookbookFreeAsync; to wait for an event from outside; and what the mode forbids. The call
//    returns cookbookErrorStreamCaptureUnsupported, all later ones cookbookErrorStreamCaptureInvalidated. A call that
//    fails for another reason, such as a null pointer, records nothing and leaves the capture valid.
//  * cookbookMalloc is allowed in every mode, unlike cudaMalloc.
COOKBOOK_API cookbookError_t cookbookStreamBeginCapture(cookbookStream_t stream, cookbookCaptureMode mode);
// On the stream that the capture was begun on and, unless it is relaxed, by the thread that began it; otherwise it is
// an error and the capture goes on. Whatever this returns beside that, no stream is captured any more. `graph` is null
// when the capture is invalid (cookbookErrorStreamCaptureInvalidated, with the first reason) or not joined
// (cookbookErrorStreamCaptureUnjoined), or when the device has failed (its sticky error).
COOKBOOK_API cookbookError_t cookbookStreamEndCapture(cookbookStream_t stream, cookbookGraph_t* graph);
COOKBOOK_API cookbookError_t cookbookStreamIsCapturing(cookbookStream_t stream, cookbookCaptureStatus* status);
// Also the capture's number, the same for all streams in it and no other capture's of the process; 0 when there is
// none.
COOKBOOK_API cookbookError_t cookbookStreamGetCaptureInfo(cookbookStream_t stream, cookbookCaptureStatus* status,
                                                          uint64_t* id);

typedef struct cookbookGraphInfo {
  int device;
  size_t nodes, edges;
  size_t kernels, copies, fills, host_functions;  // of the nodes
  size_t bytes;                                   // of host memory for nodes and arguments
} cookbookGraphInfo;
COOKBOOK_API cookbookError_t cookbookGraphGetInfo(cookbookGraph_t graph, cookbookGraphInfo* info);
// Writes the graph as a text for Graphviz: a box for each node with its stream, an arrow for each dependency.
COOKBOOK_API cookbookError_t cookbookGraphDebugDotPrint(cookbookGraph_t graph, const char* path);
// What was instantiated stays good.
COOKBOOK_API cookbookError_t cookbookGraphDestroy(cookbookGraph_t graph);

// Copies the nodes and their arguments into the form that is launched.
COOKBOOK_API cookbookError_t cookbookGraphInstantiate(cookbookGraphExec_t* exec, cookbookGraph_t graph);
// Queues all nodes as one unit of work on `stream`, a stream of the graph's device that is not captured. They run one
// after the other in the order in which they were recorded, which respects all dependencies; branches do not overlap. A
// launch runs after the one before of the same `exec`, also on another stream. Counters and injected faults count its
// nodes like single launches.
COOKBOOK_API cookbookError_t cookbookGraphLaunch(cookbookGraphExec_t exec, cookbookStream_t stream);
// Never blocks: a queued launch keeps what it needs.
COOKBOOK_API cookbookError_t cookbookGraphExecDestroy(cookbookGraphExec_t exec);

// ---- counters and injected faults ----------------------------------------------------------------------------------

// Exact numbers for tests and for the book. A "synchronization" is a call that makes the host wait for the device,
// whether or not it had to wait: the synchronize calls, cookbookMemcpy, a copy with pageable memory, cookbookFree,
// cookbookFreeHost, cookbookIpcCloseMemHandle.
typedef struct cookbookCounters {
  uint64_t launches;  // kernels
  uint64_t host_functions;
  uint64_t copies;  // a copy of 0 bytes is none
  uint64_t fills;
  uint64_t bytes_host_to_device, bytes_device_to_host, bytes_device_to_device, bytes_peer;
  uint64_t synchronizations;
  uint64_t allocations, frees;  // successful driver calls for device memory
  uint64_t event_records, event_waits;
} cookbookCounters;
COOKBOOK_API cookbookError_t cookbookGetCounters(cookbookCounters* counters, int device);
COOKBOOK_API cookbookError_t cookbookResetCounters(int device);

typedef enum cookbookFault {
  cookbookFaultNone = 0,    // forget all that is injected on the device
  cookbookFaultAlloc = 1,   // the nth allocation from now returns out of memory
  cookbookFaultLaunch = 2,  // the nth kernel from now fails when it runs, with its name in the message
  cookbookFaultDelay = 3    // the nth kernel from now starts after `microseconds`
} cookbookFault_t;
// nth counts from 1. Each fault happens once.
COOKBOOK_API cookbookError_t cookbookInjectFault(int device, cookbookFault_t fault, uint64_t nth,
                                                 uint64_t microseconds);

// COOKBOOK_LAUNCH_BLOCKING=1 makes every launch and copy wait for its end and return its error, for debugging; this
// switch does the same at run time. Returns the earlier value.
COOKBOOK_API int cookbookSetLaunchBlocking(int on);

// ---- room for more -------------------------------------------------------------------------------------------------
// Later chapters add: peer access queries.

#ifdef __cplusplus
}
#endif
#endif  // COOKBOOK_DRIVER_H
