// Named coordinators in ~/.config/muster/contexts.yaml, so that users need not type addresses.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster::cli {

// The address of a coordinator and the credentials for it. An empty field is not set.
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

// Returns $XDG_CONFIG_HOME/muster/contexts.yaml, or ~/.config/muster/contexts.yaml if that is not
// set.
std::string ContextsPath();

// Reads the contexts. Returns none if there is no file, INVALID_ARGUMENT with the file and the
// fault if it is faulty.
absl::StatusOr<Contexts> ReadContexts(const std::string& path);
// Replaces the file as a whole, or leaves it unchanged on an error. Only its owner can read it.
absl::Status WriteContexts(const std::string& path, const Contexts& contexts);

// Returns the context called `name`, or the current one if `name` is empty. The current context may
// be unset; then the result is empty. Returns NOT_FOUND, with the known names, if there is no such
// context.
absl::StatusOr<Context> FindContext(const Contexts& contexts, const std::string& name);

}  // namespace muster::cli
