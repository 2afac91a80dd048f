#include "lib/collective/fake_nccl.h"

struct ncclComm {
  int rank;
};

muster::FakeNccl* TheFakeNccl() {
  static muster::FakeNccl fake;
  return &fake;
}

static ncclResult_t Record(size_t count, ncclDataType_t type) {
  TheFakeNccl()->count = count;
  TheFakeNccl()->type = type;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId*) { return ncclSuccess; }
ncclResult_t ncclGetVersion(int* version) {
  *version = 22703;
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* communicator, int, ncclUniqueId, int rank,
                                    ncclConfig_t*) {
  *communicator = new ncclComm{rank};
  return TheFakeNccl()->start_hangs ? ncclInProgress : ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* result) {
  *result = TheFakeNccl()->start_hangs ? ncclInProgress : TheFakeNccl()->asynchronous.load();
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  ++TheFakeNccl()->aborts[communicator->rank];
  delete communicator;
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void*, void*, size_t count, ncclDataType_t type, ncclRedOp_t,
                           ncclComm_t, cudaStream_t) {
  return Record(count, type);
}

ncclResult_t ncclReduceScatter(const void*, void*, size_t count, ncclDataType_t type, ncclRedOp_t,
                               ncclComm_t, cudaStream_t) {
  return Record(count, type);
}

ncclResult_t ncclAllGather(const void*, void*, size_t count, ncclDataType_t type, ncclComm_t,
                           cudaStream_t) {
  return Record(count, type);
}

ncclResult_t ncclBroadcast(const void*, void*, size_t count, ncclDataType_t type, int, ncclComm_t,
                           cudaStream_t) {
  return Record(count, type);
}

const char* ncclGetErrorString(ncclResult_t) { return "the fake's error"; }
const char* ncclGetLastError(ncclComm_t) { return "told to"; }
