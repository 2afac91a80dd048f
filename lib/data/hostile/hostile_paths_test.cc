#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "lib/data/hostile/hostile_file.h"
#include "lib/data/source/image_graph.h"
#include "lib/data/source/open_dataset.h"
#include "lib/file/beneath.h"

namespace muster::hostile_paths_test {
namespace {

namespace fs = std::filesystem;

// A source, and a spec that reads `path`.
struct Source {
  const char* name;
  v1::DataSpec spec;
  v1::Graph graph = NumbersGraph();
};

v1::DataSpec CsvSpec(const std::string& path) {
  v1::DataSpec spec;
  spec.mutable_csv()->set_path(path);
  v1::CsvInput& x = (*spec.mutable_csv()->mutable_inputs())["x"];
  for (const char* column : {"1", "2"}) x.add_columns(column);
  (*spec.mutable_csv()->mutable_inputs())["target"].add_columns("3");
  return spec;
}

std::vector<Source> AllSources(const std::string& path) {
  std::vector<Source> sources;
  const auto add = [&](const char* name, v1::Graph graph) -> v1::DataSpec& {
    return sources.emplace_back(Source{name, {}, std::move(graph)}).spec;
  };
  v1::DataSpec& tfrecord = add("tfrecord", NumbersGraph());
  tfrecord.mutable_tfrecord()->set_path(path);
  v1::DataSpec& tar = add("tar", NumbersGraph());
  tar.mutable_tar()->set_path(path);
  for (const char* input : {"x", "target"}) {
    (*sources[0].spec.mutable_tfrecord()->mutable_inputs())[input].mutable_fixed();
    v1::TarInput& member = (*sources[1].spec.mutable_tar()->mutable_inputs())[input];
    member.set_extension(input);
    member.mutable_array();
  }
  add("csv", NumbersGraph()) = CsvSpec(path);
  v1::DataSpec& npz = add("npz", NumbersGraph());
  npz.mutable_npz()->set_path(path);
  v1::DataSpec& npy = add("npy", NumbersGraph());
  for (const char* input : {"x", "target"}) (*npy.mutable_npy()->mutable_inputs())[input] = path;
  v1::DataSpec& idx = add("idx", ImageGraph(/*classes=*/10));
  idx.mutable_idx()->set_images(path);
  idx.mutable_idx()->set_labels(path);
  v1::DataSpec& list = add("images", ImageGraph(/*classes=*/10));
  list.mutable_images()->set_list(path);
  v1::Resize& resize = *list.mutable_image()->add_train()->mutable_resize();
  resize.set_height(2);
  resize.set_width(2);
  return sources;
}

// Expects one error of each source that reads `path`.
void ExpectOfEachSource(const HostileFile& expected, const std::string& path) {
  for (const Source& source : AllSources(path)) {
    HostileFile of_source = expected;
    of_source.name = absl::StrCat(expected.name, " for ", source.name);
    of_source.parts.push_back(absl::StrCat("data.", source.name, "."));
    ExpectOneError(of_source, path, [&] { return ErrorsOf(source.spec, source.graph); });
  }
}

TEST(HostilePathsTest, FilesThatAreNoFiles) {
  const std::string folder = EmptyFolder("hostile_paths");
  const std::string pipe = folder + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  ExpectOfEachSource(Invalid("a pipe", "", {"is not a regular file"}), pipe);
  ExpectOfEachSource(Invalid("a device", "", {"is not a regular file"}), "/dev/zero");
  ExpectOfEachSource({"no file", "", {}, "DATA_NOT_FOUND", absl::StatusCode::kNotFound},
                     folder + "/none");
  fs::create_symlink("loop", folder + "/loop");
  ExpectOfEachSource({"a loop of links", "", {}, "DATA_NOT_FOUND", absl::StatusCode::kNotFound},
                     folder + "/loop");
  for (Source& source : AllSources(folder)) {
    const std::string name = source.name;
    // These read the files of a folder.
    if (name == "tfrecord" || name == "tar" || name == "csv") continue;
    ExpectOneError(Invalid("a folder for " + name, "", {"is not a regular file"}), folder,
                   [&] { return ErrorsOf(source.spec, source.graph); });
  }
}

TEST(HostilePathsTest, FilesOutsideOfTheRoots) {
  const std::string home = fs::canonical(EmptyFolder("hostile_roots")).string();
  const std::string secret = WriteFile(home + "/secret", "1,2,3\n");
  const std::string root = home + "/root", link = root + "/link";
  fs::create_directory(root);
  fs::create_symlink("../secret", link);
  SetDataRoots({root});
  const absl::Cleanup restore = [] { SetDataRoots({}); };
  const HostileFile expected = {
      "outside", "", {}, "PATH_NOT_ALLOWED", absl::StatusCode::kPermissionDenied};
  for (const std::string& path : {secret, link, root + "/../secret"}) {
    ExpectOfEachSource(expected, path);
  }
  // A list inside that names an image outside.
  v1::DataSpec spec = AllSources(WriteFile(root + "/list", "../secret 1\n")).back().spec;
  ExpectOneError(expected, "../secret", [&] { return ErrorsOf(spec, ImageGraph(/*classes=*/10)); });
}

TEST(HostilePathsTest, AMixtureNamesThePart) {
  const std::string folder = EmptyFolder("hostile_mixture");
  const std::string path = folder + "/a.csv";
  const std::string good = WriteFile(folder + "/good.csv", "1,2,3\n4,5,6\n");
  v1::DataSpec spec;
  for (const std::string& part : {good, path}) {
    v1::MixturePart& added = *spec.mutable_mixture()->add_parts();
    *added.mutable_data() = CsvSpec(part);
    added.set_weight(1);
  }
  const std::string field = "data.mixture.parts[1].data.csv.path: ";
  ExpectOneErrorEach(
      {Damaged("damage that is read", "1,2,3\n1,cat,3\n", {field, "record 1 at byte 6: line 2, "}),
       Damaged("damage that is found at once", "1,2,3\n1,\"2,3\n",
               {field, "record 1 at byte 6: a quote is not closed"}),
       TooSmall("an empty part", "", {field, "has no line"})},
      path, spec, NumbersGraph());
}

// An index is only a copy of what the files say. A damaged one costs time, and is no error.
TEST(HostilePathsTest, ADamagedIndexIsMadeAgain) {
  const std::string folder = EmptyFolder("hostile_index"), cache = EmptyFolder("hostile_cache");
  const v1::DataSpec spec = CsvSpec(WriteFile(folder + "/a.csv", "1,2,3\n4,5,6\n7,8,9\n"));
  const DataOptions options = {.index_folder = cache};
  ASSERT_TRUE(ErrorsOf(spec, NumbersGraph(), options).empty());
  const std::string path = fs::directory_iterator(cache)->path().string();
  std::ifstream file(path, std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(file), {}};
  const std::string fingerprint = OpenDataset(spec, NumbersGraph(), options).value()->fingerprint();
  const auto expect_again = [&](const std::string& name) {
    SCOPED_TRACE(name);
    const auto dataset = OpenDataset(spec, NumbersGraph(), options);
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    EXPECT_EQ((*dataset)->samples(), 3);
    EXPECT_EQ((*dataset)->fingerprint(), fingerprint);
    EXPECT_TRUE(ErrorsOf(spec, NumbersGraph(), options).empty());
  };
  for (size_t at = 0; at < good.size(); at += 5) {
    WriteFile(path, Patched(good, at, std::string(1, static_cast<char>(good[at] ^ 0x40))));
    expect_again(absl::StrCat("another byte at ", at));
    WriteFile(path, good.substr(0, at));
    expect_again(absl::StrCat("cut at ", at));
  }
  WriteFile(path, good + good);
  expect_again("more bytes");
  WriteFile(path, "some text");
  expect_again("text");
  fs::remove(path);
  fs::create_symlink("nowhere", path);
  expect_again("a link to nothing");
  fs::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  expect_again("a pipe");
  fs::remove(path);
  fs::create_directories(path + "/folder");
  expect_again("a folder");
}

TEST(HostilePathsTest, AnIndexOfOtherFilesIsNotUsed) {
  const std::string folder = EmptyFolder("hostile_other"), cache = EmptyFolder("hostile_cache_2");
  const v1::DataSpec spec = CsvSpec(WriteFile(folder + "/a.csv", "1,2,3\n4,5,6\n"));
  const v1::DataSpec other = CsvSpec(WriteFile(folder + "/b.csv", "1,2,3\n"));
  const DataOptions options = {.index_folder = cache};
  ASSERT_TRUE(ErrorsOf(spec, NumbersGraph(), options).empty());
  const fs::path path = fs::directory_iterator(cache)->path();
  ASSERT_TRUE(ErrorsOf(other, NumbersGraph(), options).empty());
  for (const auto& entry : fs::directory_iterator(cache)) {
    if (entry.path() != path) fs::copy_file(entry, path, fs::copy_options::overwrite_existing);
  }
  EXPECT_EQ(OpenDataset(spec, NumbersGraph(), options).value()->samples(), 2);
}

}  // namespace
}  // namespace muster::hostile_paths_test
