// What a bare loop needs of the thing that carries its messages.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <memory>

#include "glog/logging.h"
#include "tests/bench/bare_loop.h"

namespace muster {

// A worker's end. One thread. Tensors are f32[message_bytes / 4].
class BareWorkerEnd {
 public:
  virtual ~BareWorkerEnd() = default;
  virtual float* gradient(int tensor) = 0;
  virtual const float* values(int tensor) = 0;
  virtual void Push(int tensor) = 0;
  virtual int AwaitValues() = 0;  // the tensor whose values are in place
  // Lets messages move; whether nothing of this end is under way any more.
  virtual bool Settle() { return true; }
};

// A server's end. One thread.
class BareServerEnd {
 public:
  struct Arrival {
    int tensor;
    int worker;
  };
  virtual ~BareServerEnd() = default;
  virtual Arrival AwaitPush() = 0;
  virtual const float* gradient(int tensor, int worker) = 0;
  // Where the worker wants new values; null: Answer() sends them from where they are.
  virtual float* place(int tensor, int worker) = 0;
  // `values` stay unchanged until the worker's next push.
  virtual void Answer(int tensor, int worker, const float* values) = 0;
  virtual bool Settle() { return true; }
};

// Made before the processes are forked; each then opens its end.
class BareSubstrate {
 public:
  virtual ~BareSubstrate() = default;
  virtual std::unique_ptr<BareWorkerEnd> OpenWorker(int rank) = 0;
  virtual std::unique_ptr<BareServerEnd> OpenServer(int index) = 0;
};

std::unique_ptr<BareSubstrate> MakeBareSharedMemory(const BareLoopOptions& options);
std::unique_ptr<BareSubstrate> MakeBareUcx(const BareLoopOptions& options, const char* networks);
std::unique_ptr<BareSubstrate> MakeBareSockets(const BareLoopOptions& options);

// Zeroed pages that children of this process share.
inline void* SharedPages(int64_t bytes) {
  void* pages =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, /*offset=*/0);
  PCHECK(pages != MAP_FAILED) << bytes << " bytes";
  return pages;
}

}  // namespace muster
