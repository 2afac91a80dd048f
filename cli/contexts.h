// Coordinators by name, so that nobody types addresses: ~/.config/muster/contexts.yaml.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster::cli {

// Where a coordinator is and how to talk to it. "": not said.
struct Context {
  std::string server;
  std::string tls;
  std::string token_file;
  friend bool operator==(const Context&, const Context&) = default;
};

struct Contexts {
  std::string current;  // "": none
  std::map<std::string, Context> by_name;
};

// $XDG_CONFIG_HOME/muster/contexts.yaml, else in ~/.config.
std::string ContextsPath();

// None where there is no file. INVALID_ARGUMENT names the file and what is wrong in it.
absl::StatusOr<Contexts> ReadContexts(const std::string& path);
// Whole or not at all; for its owner alone.
absl::Status WriteContexts(const std::string& path, const Contexts& contexts);

// The one of this name, or with "" the current one, which may be none at all. NOT_FOUND lists those
// that there are.
absl::StatusOr<Context> FindContext(const Contexts& contexts, const std::string& name);

}  // namespace muster::cli
