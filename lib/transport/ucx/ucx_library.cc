#include "lib/transport/ucx/ucx_library.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

// Each UCX function in use is a jump through a pointer that LoadUcx() sets.
#define UCX_FUNCTIONS(F)            \
  F(ucp_am_data_release)            \
  F(ucp_am_recv_data_nbx)           \
  F(ucp_am_send_nbx)                \
  F(ucp_cleanup)                    \
  F(ucp_config_modify)              \
  F(ucp_config_read)                \
  F(ucp_config_release)             \
  F(ucp_context_print_info)         \
  F(ucp_context_query)              \
  F(ucp_ep_close_nbx)               \
  F(ucp_ep_create)                  \
  F(ucp_ep_print_info)              \
  F(ucp_init_version)               \
  F(ucp_mem_map)                    \
  F(ucp_mem_unmap)                  \
  F(ucp_request_check_status)       \
  F(ucp_request_free)               \
  F(ucp_worker_arm)                 \
  F(ucp_worker_create)              \
  F(ucp_worker_destroy)             \
  F(ucp_worker_get_address)         \
  F(ucp_worker_get_efd)             \
  F(ucp_worker_progress)            \
  F(ucp_worker_release_address)     \
  F(ucp_worker_set_am_recv_handler) \
  F(ucs_log_push_handler)           \
  F(ucs_status_string)

#define DEFINE_JUMP(function)                                                                   \
  extern "C" {                                                                                  \
  __attribute__((visibility("hidden"))) void* muster_loaded_##function = nullptr;               \
  }                                                                                             \
  asm(".text\n.p2align 4\n.globl " #function "\n.hidden " #function "\n.type " #function        \
      ", @function\n" #function ":\n  jmp *muster_loaded_" #function "(%rip)\n.size " #function \
      ", .-" #function "\n");

UCX_FUNCTIONS(DEFINE_JUMP)

namespace muster {
namespace {

struct Symbol {
  const char* name;
  void** address;
};

#define SYMBOL(function) {#function, &muster_loaded_##function},

constexpr Symbol kSymbols[] = {UCX_FUNCTIONS(SYMBOL)};

absl::Status NotLoaded(absl::string_view why) {
  return absl::UnavailableError(absl::StrCat(
      "RDMA needs UCX, which cannot be loaded: ", why,
      "; install UCX 1.13 or newer (Debian: libucx0), or run without RDMA: --transport=auto"));
}

}  // namespace

absl::Status LoadUcx() {
  static const auto* const loaded = new absl::Status(LoadUcxFrom("libucp.so.0"));
  return *loaded;
}

absl::Status LoadUcxFrom(const char* library) {
  void* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return NotLoaded(dlerror());
  for (const Symbol& symbol : kSymbols) {
    *symbol.address = dlsym(handle, symbol.name);
    if (*symbol.address == nullptr) return NotLoaded(absl::StrCat("it has no ", symbol.name));
  }
  return absl::OkStatus();
}

}  // namespace muster
