#include "lib/data/file/record_index.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/file/beneath.h"

namespace muster::record_index_test {
namespace {

using Builder = RecordIndex::Builder;

// Two samples in "a", none in "empty", one in "b", with two places and one label each.
Builder ThreeSamples(const std::string& folder = "/data", const std::string& key = "tar jpg cls") {
  Builder builder(key, /*slots=*/2, /*labels=*/1);
  builder.AddFile(folder + "/a", 1000, 11);
  builder.Add({{.offset = 512, .bytes = 100}, {.offset = 700, .bytes = 3}}, {7});
  builder.Add({{.offset = 800, .bytes = 90}, {.offset = 0, .bytes = -1}}, {-2});
  builder.AddFile(folder + "/empty", 0, 12);
  builder.AddFile(folder + "/b", int64_t{1} << 40, 13);
  builder.Add({{.offset = int64_t{1} << 39, .bytes = 1 << 30}, {.offset = 5, .bytes = 0}}, {9});
  return builder;
}

std::string EmptyFolder(const std::string& name) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/", name);
  std::filesystem::remove_all(folder);
  return folder;
}

std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().string());
  }
  return names;
}

std::vector<IndexedFile> FilesOf(const RecordIndex& index) {
  return {index.files().begin(), index.files().end()};
}

void ExpectThreeSamples(const RecordIndex& index) {
  ASSERT_EQ(index.samples(), 3);
  EXPECT_EQ(index.slots(), 2);
  EXPECT_EQ(index.labels(), 1);
  std::vector<std::string> places;
  for (int sample = 0; sample < 3; ++sample) {
    for (int slot = 0; slot < 2; ++slot) {
      const RecordIndex::Place place = index.at(sample, slot);
      places.push_back(absl::StrCat(place.file, " ", place.offset, " ", place.bytes));
    }
    places.push_back(absl::StrCat(index.label(sample)));
  }
  EXPECT_THAT(places, testing::ElementsAre("0 512 100", "0 700 3", "7", "0 800 90", "0 0 -1", "-2",
                                           "2 549755813888 1073741824", "2 5 0", "9"));
  EXPECT_EQ(index.files()[0].samples, 2);
  EXPECT_EQ(index.files()[1].samples, 0);
  EXPECT_EQ(index.files()[2].samples, 1);
}

TEST(RecordIndexTest, FindsPlacesAndLabelsOfSamples) {
  ExpectThreeSamples(*ThreeSamples().Build());
}

TEST(RecordIndexTest, TheFolderMayLieOutsideOfTheDataRoots) {
  const std::string folder = EmptyFolder("outside");
  const auto index = ThreeSamples().Build();
  ASSERT_TRUE(index->Save(folder).ok());
  SetDataRoots({EmptyFolder("roots")});
  const absl::Cleanup restore = [] { SetDataRoots({}); };
  const auto loaded = RecordIndex::Load(folder, "tar jpg cls", index->files());
  EXPECT_TRUE(loaded.ok()) << loaded.status();
}

TEST(RecordIndexTest, LoadsWhatWasSaved) {
  const std::string folder = EmptyFolder("saved");
  const auto index = ThreeSamples().Build();
  ASSERT_TRUE(index->Save(folder + "/new/folder").ok());
  const auto loaded = RecordIndex::Load(folder + "/new/folder", "tar jpg cls", index->files());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ExpectThreeSamples(**loaded);
  EXPECT_EQ((*loaded)->fingerprint(), index->fingerprint());
}

TEST(RecordIndexTest, ALoadedIndexOutlivesItsReplacement) {
  const std::string folder = EmptyFolder("replaced");
  const auto index = ThreeSamples().Build();
  ASSERT_TRUE(index->Save(folder).ok());
  const auto loaded = RecordIndex::Load(folder, "tar jpg cls", index->files()).value();
  Builder builder("tar jpg cls", 0, 0);
  for (const IndexedFile& file : index->files()) builder.AddFile(file.path, 1, 1);
  const auto newer = std::move(builder).Build();
  ASSERT_TRUE(newer->Save(folder).ok());
  EXPECT_EQ(NamesIn(folder).size(), 1);
  ExpectThreeSamples(*loaded);
  EXPECT_EQ(RecordIndex::Load(folder, "tar jpg cls", newer->files()).value()->samples(), 0);
}

TEST(RecordIndexTest, LoadRefusesOtherFiles) {
  const std::string folder = EmptyFolder("others");
  const auto index = ThreeSamples().Build();
  ASSERT_TRUE(index->Save(folder).ok());
  auto code = [&](const std::string& key, const std::vector<IndexedFile>& files) {
    return RecordIndex::Load(folder, key, files).status().code();
  };
  const std::vector<IndexedFile> files = FilesOf(*index);
  EXPECT_EQ(code("tar jpg cls", files), absl::StatusCode::kOk);
  EXPECT_EQ(code("tar png cls", files), absl::StatusCode::kNotFound);
  std::vector<IndexedFile> others = files;
  others[0].path += "a";
  EXPECT_EQ(code("tar jpg cls", others), absl::StatusCode::kNotFound);
  others = files;
  others[0].bytes += 1;
  EXPECT_EQ(code("tar jpg cls", others), absl::StatusCode::kNotFound);
  others = files;
  others[2].modified_ns += 1;
  EXPECT_EQ(code("tar jpg cls", others), absl::StatusCode::kNotFound);
  others = files;
  others.pop_back();
  EXPECT_EQ(code("tar jpg cls", others), absl::StatusCode::kNotFound);
}

TEST(RecordIndexTest, LoadRefusesADamagedFile) {
  const std::string folder = EmptyFolder("damaged");
  const auto index = ThreeSamples().Build();
  ASSERT_TRUE(index->Save(folder).ok());
  const std::string path = NamesIn(folder).at(0);
  std::ifstream file(path, std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(file), {}};
  auto loads = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
    const auto loaded = RecordIndex::Load(folder, "tar jpg cls", index->files());
    EXPECT_TRUE(loaded.ok() || absl::IsNotFound(loaded.status())) << loaded.status();
    return loaded.ok();
  };
  EXPECT_TRUE(loads(good));
  for (size_t at = 0; at < good.size(); ++at) {
    std::string bytes = good;
    bytes[at] ^= 1;
    EXPECT_FALSE(loads(bytes)) << at;
    EXPECT_FALSE(loads(good.substr(0, at))) << at;
  }
  EXPECT_FALSE(loads(good + '\0'));
}

TEST(RecordIndexTest, AFolderThatCannotBeWrittenIsNamed) {
  const std::string folder = EmptyFolder("file");
  std::ofstream(folder) << "a file";
  const absl::Status status = ThreeSamples().Build()->Save(folder);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("cannot be written"));
}

TEST(RecordIndexTest, TheFingerprintIsOfTheDataAndNotOfTheMachine) {
  const std::string fingerprint = ThreeSamples().Build()->fingerprint();
  EXPECT_EQ(fingerprint, "68925d9fe4a3ab2c363f5da2afb36510");  // made with hashlib
  EXPECT_EQ(ThreeSamples("/elsewhere", "another key").Build()->fingerprint(), fingerprint);
  auto fingerprint_of = [](int64_t file_bytes, int64_t at, int32_t bytes, int32_t label) {
    Builder builder("key", 1, 1);
    builder.AddFile("/data/a", file_bytes, 1);
    builder.Add({{.offset = at, .bytes = bytes}}, {label});
    return std::move(builder).Build()->fingerprint();
  };
  EXPECT_EQ(fingerprint_of(100, 0, 5, 1), fingerprint_of(100, 8, 5, 1));
  EXPECT_NE(fingerprint_of(100, 0, 5, 1), fingerprint_of(101, 0, 5, 1));
  EXPECT_NE(fingerprint_of(100, 0, 5, 1), fingerprint_of(100, 0, 6, 1));
  EXPECT_NE(fingerprint_of(100, 0, 5, 1), fingerprint_of(100, 0, 5, 2));
}

}  // namespace
}  // namespace muster::record_index_test
