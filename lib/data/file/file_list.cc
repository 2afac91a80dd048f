#include "lib/data/file/file_list.h"

#include <dirent.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/data/data_fault.h"
#include "lib/data/file/data_file.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int kNamesInMessage = 5;
constexpr int64_t kEntriesPerCheck = 1000;

struct FolderCloser {
  void operator()(DIR* folder) const { closedir(folder); }
};
using Folder = std::unique_ptr<DIR, FolderCloser>;

std::string Join(absl::string_view folder, absl::string_view name) {
  if (folder.empty()) return std::string(name);
  return absl::StrCat(folder, absl::EndsWith(folder, "/") ? "" : "/", name);
}

// Finds the facts of a path after links. Returns 0 or an error number.
int Stat(const std::string& path, struct stat& facts) {
  return TryThreeTimes([&] { return stat(path.c_str(), &facts) != 0 ? errno : 0; });
}

// Calls `visit` for each entry of a folder, with its facts after links.
absl::Status VisitEntries(const std::string& path, absl::string_view field,
                          absl::FunctionRef<bool(const char* name)> selects,
                          absl::FunctionRef<absl::Status(const char*, const struct stat&)> visit) {
  Folder folder;
  const int not_opened = TryThreeTimes([&] {
    folder.reset(opendir(path.empty() ? "." : path.c_str()));
    return folder == nullptr ? errno : 0;
  });
  if (folder == nullptr) return DataPathFault(field, path, not_opened);
  for (int64_t seen = 0;; ++seen) {
    // The first entry counts, because there may be many small folders.
    if (seen % kEntriesPerCheck == 0) RETURN_IF_ERROR(CheckWatch());
    errno = 0;
    const dirent* entry = readdir(folder.get());
    if (entry == nullptr) break;
    if (!selects(entry->d_name)) continue;
    struct stat facts;
    const int unknown = TryThreeTimes(
        [&] { return fstatat(dirfd(folder.get()), entry->d_name, &facts, 0) != 0 ? errno : 0; });
    if (unknown != 0) return DataPathFault(field, Join(path, entry->d_name), unknown);
    RETURN_IF_ERROR(visit(entry->d_name, facts));
  }
  return errno == 0 ? absl::OkStatus() : DataPathFault(field, path, errno);
}

bool IsHidden(const char* name) { return name[0] == '.'; }

int64_t ModifiedNs(const struct stat& facts) {
  return int64_t{facts.st_mtim.tv_sec} * 1'000'000'000 + facts.st_mtim.tv_nsec;
}

absl::Status NoRegularFile(absl::string_view field, const std::string& path) {
  return DataInvalid(field, absl::StrCat(path, ": is not a regular file"));
}

absl::Status TooManyFiles(absl::string_view field, const std::string& path, int64_t files_max) {
  return DataInvalid(field, absl::StrCat(path, ": more than ", files_max,
                                         " files, which is the limit: pack them into fewer"));
}

using FolderId = std::pair<dev_t, ino_t>;

// Returns the texts of one pair of braces, "000..146" or "a,b", or nullopt if it is neither.
std::optional<std::vector<std::string>> Alternatives(absl::string_view inside, int64_t limit) {
  const size_t dots = inside.find("..");
  if (dots == absl::string_view::npos) {
    if (!absl::StrContains(inside, ',')) return std::nullopt;
    std::vector<std::string> texts;
    while (true) {
      const size_t comma = inside.find(',');
      texts.emplace_back(inside.substr(0, comma));
      if (comma == absl::string_view::npos) return texts;
      inside.remove_prefix(comma + 1);
    }
  }
  const absl::string_view first_text = inside.substr(0, dots);
  const absl::string_view last_text = inside.substr(dots + 2);
  const auto is_number = [](absl::string_view text) {
    return !text.empty() && text.size() <= 18 &&
           text.find_first_not_of("0123456789") == absl::string_view::npos;
  };
  int64_t first = 0, last = 0;
  if (!is_number(first_text) || !absl::SimpleAtoi(first_text, &first)) return std::nullopt;
  if (!is_number(last_text) || !absl::SimpleAtoi(last_text, &last)) return std::nullopt;
  if (last < first) return std::nullopt;
  // Bash fills with zeros if one of the numbers begins with a zero.
  const bool is_filled = (first_text.size() > 1 && first_text[0] == '0') ||
                         (last_text.size() > 1 && last_text[0] == '0');
  const size_t width = is_filled ? std::max(first_text.size(), last_text.size()) : 0;
  std::vector<std::string> texts;
  for (int64_t i = first; i <= last && std::ssize(texts) <= limit; ++i) {
    std::string digits = absl::StrCat(i);
    if (digits.size() < width) digits.insert(0, width - digits.size(), '0');
    texts.push_back(std::move(digits));
  }
  return texts;
}

// A backslash and a bracket stand for themselves in our patterns.
std::string FnmatchPattern(absl::string_view component) {
  std::string pattern;
  for (const char c : component)
    absl::StrAppend(&pattern, c == '[' ? "\\[" : c == '\\' ? "\\\\" : std::string(1, c));
  return pattern;
}

// Names the first entries of the nearest folder that exists.
std::string NearestContent(std::string path) {
  while (true) {
    const size_t slash = path.rfind('/');
    path = slash == std::string::npos ? "" : path.substr(0, std::max<size_t>(slash, 1));
    std::vector<std::string> names;
    struct stat facts;
    if (Stat(path.empty() ? "." : path, facts) == 0 && S_ISDIR(facts.st_mode)) {
      const Folder folder(opendir(path.empty() ? "." : path.c_str()));
      if (folder == nullptr) return "";
      while (const dirent* entry = readdir(folder.get())) {
        if (!IsHidden(entry->d_name)) names.push_back(entry->d_name);
      }
      const std::string where = path.empty() ? "the folder" : path;
      if (names.empty()) return absl::StrCat("; ", where, " is empty");
      const size_t shown = std::min<size_t>(names.size(), kNamesInMessage);
      std::partial_sort(names.begin(), names.begin() + shown, names.end());
      const size_t others = names.size() - shown;
      names.resize(shown);
      return absl::StrCat("; ", where, " holds ", absl::StrJoin(names, ", "),
                          others > 0 ? absl::StrCat(" and ", others, " more") : "");
    }
    if (path.empty() || path == "/") return "";
  }
}

absl::Status NothingMatches(absl::string_view field, const std::string& path,
                            absl::string_view why) {
  const std::string place = absl::EndsWith(path, "/") ? path : absl::StrCat(path, "/");
  return Annotate(
      WithReason(absl::NotFoundError(absl::StrCat(path, ": ", why, NearestContent(place))),
                 "DATA_NOT_FOUND"),
      field);
}

class FileLister {
 public:
  FileLister(absl::string_view field, const FileListOptions& options)
      : field_(field), options_(options) {}

  absl::StatusOr<std::vector<ListedFile>> List(const std::string& path) {
    struct stat facts;
    const int unknown = Stat(path, facts);
    if (unknown == 0) {
      RETURN_IF_ERROR(AddNamed(path, facts));  // also a name with braces or stars
    } else if (IsStorageFault(unknown)) {
      return DataPathFault(field_, path, unknown);
    } else if (path.find_first_of("*?{") == std::string::npos) {
      if (unknown != ENOENT) return DataPathFault(field_, path, unknown);
      return NothingMatches(field_, path, "no such file or folder");
    } else {
      ASSIGN_OR_RETURN(const std::vector<std::string> patterns,
                       ExpandBraces(path, field_, options_.files_max));
      for (const std::string& pattern : patterns) {
        const size_t before = files_.size();
        RETURN_IF_ERROR(Match("", pattern));
        if (files_.size() == before) return NothingMatches(field_, pattern, "matches no file");
      }
    }
    std::sort(files_.begin(), files_.end(),
              [](const ListedFile& a, const ListedFile& b) { return a.path < b.path; });
    const auto is_same = [](const ListedFile& a, const ListedFile& b) { return a.path == b.path; };
    files_.erase(std::unique(files_.begin(), files_.end(), is_same), files_.end());
    return std::move(files_);
  }

 private:
  absl::Status Add(std::string path, const struct stat& facts) {
    if (!S_ISREG(facts.st_mode)) return NoRegularFile(field_, path);
    return Add(std::move(path), facts.st_size, ModifiedNs(facts));
  }

  absl::Status Add(std::string path, int64_t bytes, int64_t modified_ns) {
    if (std::ssize(files_) == options_.files_max) {
      return TooManyFiles(field_, path, options_.files_max);
    }
    files_.push_back({std::move(path), bytes, modified_ns});
    return absl::OkStatus();
  }

  absl::Status AddNamed(const std::string& path, const struct stat& facts) {
    if (!S_ISDIR(facts.st_mode)) return Add(path, facts);
    const size_t before = files_.size();
    RETURN_IF_ERROR(VisitFiles(path, field_, options_,
                               [&](absl::string_view name, int64_t bytes, int64_t modified_ns) {
                                 return Add(Join(path, name), bytes, modified_ns);
                               }));
    if (files_.size() > before) return absl::OkStatus();
    const std::string kind =
        options_.extension.empty() ? "" : absl::StrCat(" ", options_.extension);
    return NothingMatches(field_, Join(path, ""), absl::StrCat("the folder has no", kind, " file"));
  }

  // Adds the files that match `pattern`, which starts at `folder`.
  absl::Status Match(const std::string& folder, absl::string_view pattern) {
    // All up to the first component with a star is a plain path.
    const size_t special = pattern.find_first_of("*?");
    if (special == absl::string_view::npos) {
      const std::string path = Join(folder, pattern);
      struct stat facts;
      const int unknown = Stat(path, facts);
      if (unknown == ENOENT || unknown == ENOTDIR) return absl::OkStatus();
      if (unknown != 0) return DataPathFault(field_, path, unknown);
      return AddNamed(path, facts);
    }
    const size_t slash = pattern.rfind('/', special);
    std::string base = folder;
    if (slash != absl::string_view::npos) {
      base = Join(folder, pattern.substr(0, std::max<size_t>(slash, 1)));
      pattern.remove_prefix(slash + 1);
    }
    struct stat facts;
    if (const int unknown = Stat(base.empty() ? "." : base, facts); unknown != 0) {
      return IsStorageFault(unknown) ? DataPathFault(field_, base, unknown) : absl::OkStatus();
    }
    if (!S_ISDIR(facts.st_mode)) return absl::OkStatus();
    const size_t end = pattern.find('/');
    const std::string component = FnmatchPattern(pattern.substr(0, end));
    const absl::string_view rest = end == absl::string_view::npos ? "" : pattern.substr(end + 1);
    std::vector<std::string> folders;
    RETURN_IF_ERROR(VisitEntries(
        base, field_,
        [&](const char* name) { return fnmatch(component.c_str(), name, FNM_PERIOD) == 0; },
        [&](const char* name, const struct stat& entry) {
          if (!S_ISDIR(entry.st_mode)) {
            return rest.empty() ? Add(Join(base, name), entry) : absl::OkStatus();
          }
          if (!rest.empty()) folders.push_back(Join(base, name));
          return absl::OkStatus();
        }));
    for (const std::string& next : folders) RETURN_IF_ERROR(Match(next, rest));
    return absl::OkStatus();
  }

  const absl::string_view field_;
  const FileListOptions& options_;
  std::vector<ListedFile> files_;
};

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandBraces(const std::string& path,
                                                      absl::string_view field,
                                                      int64_t patterns_max) {
  std::vector<std::string> done = {""};
  absl::string_view rest = path;
  while (true) {
    const size_t open = rest.find('{');
    for (std::string& text : done) absl::StrAppend(&text, rest.substr(0, open));
    if (open == absl::string_view::npos) return done;
    const size_t close = rest.find('}', open);
    const auto texts = close == absl::string_view::npos
                           ? std::nullopt
                           : Alternatives(rest.substr(open + 1, close - open - 1), patterns_max);
    if (!texts) {
      return DataInvalid(field, absl::StrCat(path, ": '", rest.substr(open, close - open + 1),
                                             "' is no range such as {000..146}, and no list such "
                                             "as {a,b}"));
    }
    if (std::ssize(*texts) > patterns_max / std::ssize(done)) {
      return TooManyFiles(field, path, patterns_max);
    }
    std::vector<std::string> longer;
    for (const std::string& text : done) {
      for (const std::string& next : *texts) longer.push_back(text + next);
    }
    done = std::move(longer);
    rest.remove_prefix(close + 1);
  }
}

absl::StatusOr<std::vector<ListedFile>> ListFiles(const std::string& path, absl::string_view field,
                                                  const FileListOptions& options) {
  return FileLister(field, options).List(path);
}

absl::Status VisitFiles(
    const std::string& folder, absl::string_view field, const FileListOptions& options,
    absl::FunctionRef<absl::Status(absl::string_view name, int64_t bytes, int64_t modified_ns)>
        visit) {
  absl::flat_hash_set<FolderId> seen;
  std::vector<std::string> names = {""};  // of folders to visit, relative to `folder`
  struct stat top;
  if (const int unknown = Stat(folder, top); unknown != 0) {
    return DataPathFault(field, folder, unknown);
  }
  seen.insert({top.st_dev, top.st_ino});
  while (!names.empty()) {
    const std::string inner = std::move(names.back());
    names.pop_back();
    std::vector<std::pair<std::string, FolderId>> found;
    RETURN_IF_ERROR(VisitEntries(
        inner.empty() ? folder : Join(folder, inner), field,
        [](const char* name) { return !IsHidden(name); },
        [&](const char* name, const struct stat& facts) {
          const std::string path = Join(inner, name);
          if (S_ISDIR(facts.st_mode)) {
            if (options.is_recursive) found.push_back({path, {facts.st_dev, facts.st_ino}});
            return absl::OkStatus();
          }
          if (!absl::EndsWith(path, options.extension)) return absl::OkStatus();
          if (!S_ISREG(facts.st_mode)) return NoRegularFile(field, Join(folder, path));
          return visit(path, facts.st_size, ModifiedNs(facts));
        }));
    // The order of names decides under which one a folder with several links is visited, so every
    // machine decides alike.
    std::sort(found.begin(), found.end());
    const size_t before = names.size();
    for (auto& [path, id] : found) {
      if (seen.insert(id).second) names.push_back(std::move(path));
    }
    std::reverse(names.begin() + before, names.end());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ListFolders(const std::string& folder,
                                                     absl::string_view field) {
  std::vector<std::string> folders;
  RETURN_IF_ERROR(VisitEntries(
      folder, field, [](const char* name) { return !IsHidden(name); },
      [&](const char* name, const struct stat& facts) {
        if (S_ISDIR(facts.st_mode)) folders.push_back(name);
        return absl::OkStatus();
      }));
  std::sort(folders.begin(), folders.end());
  return folders;
}

}  // namespace muster
