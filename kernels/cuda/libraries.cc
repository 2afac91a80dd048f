#include "kernels/cuda/libraries.h"

#include <cublasLt.h>
#include <cudnn.h>
#include <dlfcn.h>

#include <mutex>
#include <string>

// Each library function is a jump through a pointer that LoadLibraries() sets.
#define CUBLASLT_FUNCTIONS(F)             \
  F(cublasLtCreate)                       \
  F(cublasLtDestroy)                      \
  F(cublasLtGetStatusString)              \
  F(cublasLtGetVersion)                   \
  F(cublasLtMatmul)                       \
  F(cublasLtMatmulAlgoGetHeuristic)       \
  F(cublasLtMatmulDescCreate)             \
  F(cublasLtMatmulDescDestroy)            \
  F(cublasLtMatmulDescSetAttribute)       \
  F(cublasLtMatmulPreferenceCreate)       \
  F(cublasLtMatmulPreferenceDestroy)      \
  F(cublasLtMatmulPreferenceSetAttribute) \
  F(cublasLtMatrixLayoutCreate)           \
  F(cublasLtMatrixLayoutDestroy)          \
  F(cublasLtMatrixLayoutSetAttribute)

#define CUDNN_FUNCTIONS(F)                          \
  F(cudnnBackendCreateDescriptor)                   \
  F(cudnnBackendDestroyDescriptor)                  \
  F(cudnnBackendExecute)                            \
  F(cudnnBackendFinalize)                           \
  F(cudnnBackendGetAttribute)                       \
  F(cudnnBackendSetAttribute)                       \
  F(cudnnConvolutionBackwardData)                   \
  F(cudnnConvolutionBackwardFilter)                 \
  F(cudnnConvolutionForward)                        \
  F(cudnnCreate)                                    \
  F(cudnnCreateConvolutionDescriptor)               \
  F(cudnnCreateFilterDescriptor)                    \
  F(cudnnCreateTensorDescriptor)                    \
  F(cudnnDestroy)                                   \
  F(cudnnDestroyConvolutionDescriptor)              \
  F(cudnnDestroyFilterDescriptor)                   \
  F(cudnnDestroyTensorDescriptor)                   \
  F(cudnnFindConvolutionBackwardDataAlgorithmEx)    \
  F(cudnnFindConvolutionBackwardFilterAlgorithmEx)  \
  F(cudnnFindConvolutionForwardAlgorithmEx)         \
  F(cudnnGetConvolutionBackwardDataAlgorithm_v7)    \
  F(cudnnGetConvolutionBackwardDataWorkspaceSize)   \
  F(cudnnGetConvolutionBackwardFilterAlgorithm_v7)  \
  F(cudnnGetConvolutionBackwardFilterWorkspaceSize) \
  F(cudnnGetConvolutionForwardAlgorithm_v7)         \
  F(cudnnGetConvolutionForwardWorkspaceSize)        \
  F(cudnnGetErrorString)                            \
  F(cudnnGetLastErrorString)                        \
  F(cudnnGetVersion)                                \
  F(cudnnSetConvolution2dDescriptor)                \
  F(cudnnSetConvolutionGroupCount)                  \
  F(cudnnSetConvolutionMathType)                    \
  F(cudnnSetFilter4dDescriptor)                     \
  F(cudnnSetStream)                                 \
  F(cudnnSetTensor4dDescriptor)

#define DEFINE_JUMP(function)                                                                   \
  extern "C" {                                                                                  \
  __attribute__((visibility("hidden"))) void* muster_loaded_##function = nullptr;               \
  }                                                                                             \
  asm(".text\n.p2align 4\n.globl " #function "\n.hidden " #function "\n.type " #function        \
      ", @function\n" #function ":\n  jmp *muster_loaded_" #function "(%rip)\n.size " #function \
      ", .-" #function "\n");

CUBLASLT_FUNCTIONS(DEFINE_JUMP)
CUDNN_FUNCTIONS(DEFINE_JUMP)

namespace muster::kernels::cuda {
namespace {

struct Symbol {
  const char* name;
  void** address;
};

#define SYMBOL(function) {#function, &muster_loaded_##function},

constexpr Symbol kCublasLt[] = {CUBLASLT_FUNCTIONS(SYMBOL)};
constexpr Symbol kCudnn[] = {CUDNN_FUNCTIONS(SYMBOL)};

template <int N>
bool Load(const std::string& library, const Symbol (&symbols)[N], std::string& failure) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    failure = dlerror();
    return false;
  }
  for (const Symbol& symbol : symbols) {
    *symbol.address = dlsym(handle, symbol.name);
    if (*symbol.address == nullptr) {
      failure = library + " has no " + symbol.name;
      return false;
    }
  }
  return true;
}

}  // namespace

Failure LoadLibraries() {
  static std::once_flag once;
  static std::string failure;
  std::call_once(once, [] {
    Load("libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR), kCublasLt, failure) &&
        Load("libcudnn.so." + std::to_string(CUDNN_MAJOR), kCudnn, failure);
  });
  return failure.empty() ? nullptr : failure.c_str();
}

}  // namespace muster::kernels::cuda
