// Runs the examples as a new user does: in a copy of the tree with nothing next to it.
#include <stdlib.h>
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace muster::examples_test {
namespace {

namespace fs = std::filesystem;

struct Outcome {
  int exit_code = -1;
  std::string out;
  std::string err;
};

std::string ReadAll(const fs::path& path) {
  std::ifstream file(path);
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

class ExamplesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string folder = absl::StrCat(::testing::TempDir(), "/clone.XXXXXX");
    ASSERT_NE(mkdtemp(folder.data()), nullptr) << folder;
    tree_ = fs::path(folder) / "muster";
    fs::create_directory(tree_);
    muster_ = fs::absolute("cli/muster");
    fs::copy("examples", tree_ / "examples", fs::copy_options::recursive);
    for (const auto& entry : fs::directory_iterator(tree_ / "examples")) {
      if (entry.path().extension() == ".yaml") files_.push_back(entry.path().filename());
    }
    std::sort(files_.begin(), files_.end());
    ASSERT_GE(files_.size(), 18);
  }

  // Runs `muster ARGUMENTS` in the root of the copy.
  Outcome Muster(const std::string& arguments) {
    const std::string out = tree_.parent_path() / "out", err = tree_.parent_path() / "err";
    const int status = system(absl::StrCat("cd ", tree_.string(), " && ", muster_.string(), " ",
                                           arguments, " >", out, " 2>", err, " </dev/null")
                                  .c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), ReadAll(out),
            ReadAll(err)};
  }

  fs::path tree_;
  fs::path muster_;
  std::vector<std::string> files_;
};

// Models at full size need a larger machine than a test has.
bool IsLarge(const std::string& text) {
  return absl::StrContains(text, "synthetic:") || absl::StrContains(text, "size: 124m");
}

TEST_F(ExamplesTest, EveryOneIsValid) {
  for (const std::string& file : files_) {
    const Outcome outcome = Muster("validate examples/" + file);
    EXPECT_EQ(outcome.exit_code, 0) << file << "\n" << outcome.err;
  }
}

TEST_F(ExamplesTest, EverySmallOneTrains) {
  int trained = 0;
  for (const std::string& file : files_) {
    const std::string text = ReadAll(tree_ / "examples" / file);
    if (IsLarge(text)) continue;
    SCOPED_TRACE(file);
    std::string length = absl::StrContains(text, "epochs:") ? " --set training.epochs=1"
                                                            : " --set training.steps=12";
    if (absl::StrContains(text, "warmup_steps:"))
      length += " --set training.schedule.warmup_steps=1";

    const Outcome outcome = Muster(absl::StrCat("-o json run examples/", file, length));

    ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
    const nlohmann::json job = nlohmann::json::parse(outcome.out, nullptr, false);
    EXPECT_EQ(job.value("state", ""), "SUCCEEDED") << outcome.out;
    ++trained;
  }
  EXPECT_GE(trained, 9);
}

}  // namespace
}  // namespace muster::examples_test
