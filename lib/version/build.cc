#include "lib/version/build.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "lib/version/version.h"

namespace muster {

extern const char kCommitStamp[];  // commit_stamp.cc

namespace {

constexpr char kSanitizer[] =
#if defined(__SANITIZE_ADDRESS__)
    " with AddressSanitizer";
#elif defined(__SANITIZE_THREAD__)
    " with ThreadSanitizer";
#else
    "";
#endif

constexpr char kCompiler[] =
#if defined(__clang__)
    "clang " __clang_version__;
#else
    "g++ " __VERSION__;
#endif

#ifdef MUSTER_CUDA
constexpr bool kCuda = true;
#else
constexpr bool kCuda = false;
#endif

}  // namespace

Build ThisBuild() { return BuildOf(kCommitStamp); }

Build BuildOf(absl::string_view stamp) {
  if (stamp.empty() || stamp == "redacted") stamp = "unknown";
  const std::pair<absl::string_view, absl::string_view> words =
      absl::StrSplit(stamp, absl::MaxSplits(' ', 1));
  return {.version = absl::StrCat(Version(), words.second),
          .commit = std::string(words.first),
          .kind = absl::StrCat(MUSTER_COMPILATION_MODE, kSanitizer),
          .cuda = kCuda,
          .compiler = kCompiler};
}

std::string ToText(const Build& build) {
  return absl::StrCat("muster ", build.version, "\ncommit ", build.commit, "\nbuild ", build.kind,
                      build.cuda ? ", CUDA, " : ", no CUDA, ", build.compiler, "\n");
}

std::map<std::string, std::string> ToLabels(const Build& build) {
  return {{"version", build.version},
          {"commit", build.commit},
          {"kind", build.kind},
          {"cuda", build.cuda ? "true" : "false"},
          {"compiler", build.compiler}};
}

}  // namespace muster
