// The interface between a bare loop and the substrate that carries its messages.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <memory>

#include "glog/logging.h"
#include "tests/bench/bare_loop.h"

namespace muster {

// A worker's end. Used on one thread. Tensors are f32[message_bytes / 4].
class BareWorkerEnd {
 public:
  virtual ~BareWorkerEnd() = default;
  virtual float* gradient(int tensor) = 0;
  virtual const float* values(int tensor) = 0;
  virtual void Push(int tensor) = 0;
  virtual int AwaitValues() = 0;  // returns the tensor whose values are in place
  // Makes progress on messages. Returns true if this end has nothing in flight.
  virtual bool Settle() { return true; }
};

// A server's end. Used on one thread.
class BareServerEnd {
 public:
  struct Arrival {
    int tensor;
    int worker;
  };
  virtual ~BareServerEnd() = default;
  virtual Arrival AwaitPush() = 0;
  virtual const float* gradient(int tensor, int worker) = 0;
  // Returns the memory for the worker's new values. Null: Answer() sends them from the server's
  // memory.
  virtual float* place(int tensor, int worker) = 0;
  // `values` must stay unchanged until the worker's next push.
  virtual void Answer(int tensor, int worker, const float* values) = 0;
  virtual bool Settle() { return true; }
};

// Created before the processes are forked; each process then opens its end.
class BareSubstrate {
 public:
  virtual ~BareSubstrate() = default;
  virtual std::unique_ptr<BareWorkerEnd> OpenWorker(int rank) = 0;
  virtual std::unique_ptr<BareServerEnd> OpenServer(int index) = 0;
};

std::unique_ptr<BareSubstrate> MakeBareSharedMemory(const BareLoopOptions& options);
std::unique_ptr<BareSubstrate> MakeBareUcx(const BareLoopOptions& options, const char* networks);
std::unique_ptr<BareSubstrate> MakeBareSockets(const BareLoopOptions& options);

// Returns zeroed pages that the children of this process share.
inline void* SharedPages(int64_t bytes) {
  void* pages =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, /*offset=*/0);
  PCHECK(pages != MAP_FAILED) << bytes << " bytes";
  return pages;
}

}  // namespace muster
