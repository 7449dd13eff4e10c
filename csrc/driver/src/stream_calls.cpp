// The calls about streams.
#include "capture.h"
#include "device.h"
#include "error.h"
#include "gate.h"

using namespace cookbook::driver;

cookbookError_t cookbookGetDefaultStream(cookbookStream_t* stream, int device) {
  return guarded([&] {
    if (cookbookError_t error = enter(); error != cookbookSuccess) return error;
    if (!stream) return fail(cookbookErrorInvalidValue, "stream is null");
    Device* found;
    if (cookbookError_t error = find_device(device, found); error != cookbookSuccess) return error;
    if (cookbookError_t error = found->use(); error != cookbookSuccess) return error;
    *stream = handle_of(&found->default_stream());
    return cookbookSuccess;
  });
}

cookbookError_t cookbookStreamCreate(cookbookStream_t* stream, int priority) {
  return guarded([&] {
    if (cookbookError_t error = enter(); error != cookbookSuccess) return error;
    if (!stream) return fail(cookbookErrorInvalidValue, "stream is null");
    Device* device;
    if (cookbookError_t error = use_current_device(device); error != cookbookSuccess) return error;
    Stream* created;
    if (cookbookError_t error = device->create_stream(priority, created); error != cookbookSuccess) return error;
    *stream = handle_of(created);
    return cookbookSuccess;
  });
}

cookbookError_t cookbookStreamDestroy(cookbookStream_t handle) {
  return guarded([&] {
    Stream* stream;
    if (cookbookError_t error = find_stream(handle, stream); error != cookbookSuccess) return error;
    if (stream->id() == 0) return fail(cookbookErrorInvalidValue, "a device's default stream cannot be destroyed");
    const cookbookError_t error = refuse_on_captured_stream(*stream, "cookbookStreamDestroy", "end the capture first");
    if (error != cookbookSuccess) return error;
    if (!stream->close()) return fail(cookbookErrorInvalidHandle, "the stream was destroyed");
    stream->wait(stream->tail());
    stream->device().memory().forget(*stream);
    stream->release();
    stream->device().recycle(stream);
    return cookbookSuccess;
  });
}

cookbookError_t cookbookStreamGetDevice(cookbookStream_t handle, int* device) {
  return guarded([&] {
    Stream* stream;
    if (cookbookError_t error = find_stream(handle, stream); error != cookbookSuccess) return error;
    if (!device) return fail(cookbookErrorInvalidValue, "device is null");
    *device = stream->device().index();
    return cookbookSuccess;
  });
}

cookbookError_t cookbookStreamGetPriority(cookbookStream_t handle, int* priority) {
  return guarded([&] {
    Stream* stream;
    if (cookbookError_t error = find_stream(handle, stream); error != cookbookSuccess) return error;
    if (!priority) return fail(cookbookErrorInvalidValue, "priority is null");
    *priority = stream->priority();
    return cookbookSuccess;
  });
}

cookbookError_t cookbookStreamQuery(cookbookStream_t handle) {
  return guarded([&] {
    Stream* stream;
    if (cookbookError_t error = find_stream(handle, stream); error != cookbookSuccess) return error;
    const cookbookError_t error = refuse_on_captured_stream(
        *stream, "cookbookStreamQuery", "its work is recorded and does not run, so it has no status");
    if (error != cookbookSuccess) return error;
    return stream->done(stream->tail()) ? cookbookSuccess : cookbookErrorNotReady;
  });
}

cookbookError_t cookbookStreamSynchronize(cookbookStream_t handle) {
  return guarded([&] {
    Stream* stream;
    if (cookbookError_t error = find_stream(handle, stream); error != cookbookSuccess) return error;
    const cookbookError_t error = refuse_on_captured_stream(
        *stream, "cookbookStreamSynchronize", "its work is recorded and does not run, so there is nothing to wait for");
    if (error != cookbookSuccess) return error;
    stream->device().count_synchronization();
    stream->wait(stream->tail());
    return stream->device().status();
  });
}
