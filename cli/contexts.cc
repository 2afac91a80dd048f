#include "cli/contexts.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/file/replaced_file.h"
#include "yaml-cpp/yaml.h"

namespace muster::cli {
namespace {

absl::Status Faulty(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": ", what, "; fix it, or remove it and run muster context add"));
}

absl::StatusOr<Context> ParseContext(const YAML::Node& node, const std::string& where,
                                     const std::string& path) {
  Context context;
  if (!node.IsMap()) return Faulty(path, absl::StrCat(where, " is not a map"));
  for (const auto& entry : node) {
    const auto key = entry.first.as<std::string>();
    std::string* const field = key == "server"       ? &context.server
                               : key == "tls"        ? &context.tls
                               : key == "token_file" ? &context.token_file
                                                     : nullptr;
    if (field == nullptr) return Faulty(path, absl::StrCat(where, " has the unknown key ", key));
    *field = entry.second.as<std::string>();
  }
  return context;
}

}  // namespace

std::string ContextsPath() {
  const char* config = std::getenv("XDG_CONFIG_HOME");
  if (config != nullptr && *config != '\0') return absl::StrCat(config, "/muster/contexts.yaml");
  const char* home = std::getenv("HOME");
  return absl::StrCat(home == nullptr ? "." : home, "/.config/muster/contexts.yaml");
}

absl::StatusOr<Contexts> ReadContexts(const std::string& path) {
  Contexts contexts;
  std::ifstream file(path);
  if (!file) return contexts;
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  try {
    const YAML::Node root = YAML::Load(text);
    if (root.IsNull()) return contexts;
    if (!root.IsMap()) return Faulty(path, "it is not a map");
    for (const auto& entry : root) {
      const auto key = entry.first.as<std::string>();
      if (key == "current") {
        contexts.current = entry.second.as<std::string>();
      } else if (key == "contexts") {
        for (const auto& one : entry.second) {
          const auto name = one.first.as<std::string>();
          auto context = ParseContext(one.second, absl::StrCat("context ", name), path);
          if (!context.ok()) return context.status();
          contexts.by_name[name] = *context;
        }
      } else {
        return Faulty(path, absl::StrCat("unknown key ", key));
      }
    }
  } catch (const YAML::Exception& error) {
    return Faulty(path, error.what());
  }
  return contexts;
}

absl::Status WriteContexts(const std::string& path, const Contexts& contexts) {
  YAML::Emitter yaml;
  yaml << YAML::BeginMap << YAML::Key << "current" << YAML::Value << contexts.current << YAML::Key
       << "contexts" << YAML::Value << YAML::BeginMap;
  for (const auto& [name, context] : contexts.by_name) {
    yaml << YAML::Key << name << YAML::Value << YAML::BeginMap;
    auto put = [&yaml](const char* key, const std::string& value) {
      if (!value.empty()) yaml << YAML::Key << key << YAML::Value << value;
    };
    put("server", context.server);
    put("tls", context.tls);
    put("token_file", context.token_file);
    yaml << YAML::EndMap;
  }
  yaml << YAML::EndMap << YAML::EndMap;
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error) return absl::PermissionDeniedError(absl::StrCat(path, ": ", error.message()));
  // Mode 0600, because the file names the user's token files.
  return ReplaceFile(path, absl::StrCat(yaml.c_str(), "\n"), /*mode=*/0600);
}

absl::StatusOr<Context> FindContext(const Contexts& contexts, const std::string& name) {
  const std::string& wanted = name.empty() ? contexts.current : name;
  if (wanted.empty()) return Context();
  const auto found = contexts.by_name.find(wanted);
  if (found != contexts.by_name.end()) return found->second;
  std::set<std::string> known;
  for (const auto& [one, context] : contexts.by_name) known.insert(one);
  return absl::NotFoundError(absl::StrCat(
      "no context '", wanted, "'; ",
      known.empty() ? "there are none; create one with muster context add NAME --server HOST:PORT"
                    : absl::StrCat("there are ", absl::StrJoin(known, ", "))));
}

}  // namespace muster::cli
