// Keeps threads on the processors of a NUMA node. The node's memory is the nearest, and the kernel
// gives a thread the memory next to the processor on which it runs.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

// Parses the kernel's list of processors, "0-3,8". Returns INVALID_ARGUMENT for another form.
absl::StatusOr<std::vector<int>> ParseCpuList(absl::string_view list);

// Returns the processors next to the PCI device, as the kernel numbers them. `bus_id` is
// "0000:3b:00.0", in any case of letters. Returns NOT_FOUND if the kernel does not know them.
// `devices`: the kernel's folder of PCI devices.
absl::StatusOr<std::vector<int>> CpusNextTo(absl::string_view bus_id,
                                            const std::string& devices = "/sys/bus/pci/devices");

// Binds the calling thread, and the threads that it starts later, to `cpus`. Processors on which it
// may not run now are left out. Returns FAILED_PRECONDITION if it may run on none of them; then
// nothing changes.
absl::Status BindThreadTo(const std::vector<int>& cpus);

}  // namespace muster
