#include "lib/data/source/images_dataset.h"

#include <malloc.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/data/sample_bytes.h"
#include "lib/data/source/fake_image_rows.h"
#include "lib/data/source/image_graph.h"
#include "lib/data/stage_times.h"
#include "lib/status/status.h"

namespace muster::images_dataset_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class ImagesDatasetTest : public testing::Test {
 protected:
  ImagesDatasetTest() : folder_(absl::StrCat(testing::TempDir(), "/images_dataset")) {
    fs::remove_all(folder_);
    spec_.mutable_images()->set_path(folder_ + "/train");
  }

  std::string Write(const std::string& name, const std::string& bytes) const {
    const std::string path = absl::StrCat(folder_, "/", name);
    fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  void WriteImage(const std::string& name, char value) const {
    Write(name, absl::StrCat("IMG", std::string(1, value)));
  }

  absl::StatusOr<std::unique_ptr<const Dataset>> Open(int64_t held_bytes_max = 1 << 20) const {
    return OpenImagesDataset(spec_, ImageGraph(/*classes=*/3), {.held_bytes_max = held_bytes_max},
                             FakeImageRows::Maker());
  }

  // Returns "VALUE LABEL" of each sample, or the error.
  static std::string Samples(const absl::StatusOr<std::unique_ptr<const Dataset>>& dataset,
                             bool is_evaluation = false) {
    if (!dataset.ok()) return ErrorOf(dataset.status());
    const int64_t count = is_evaluation ? (*dataset)->evaluation_samples() : (*dataset)->samples();
    std::vector<uint8_t> pixels(12 * count);
    std::vector<int32_t> labels(count);
    const absl::Span<std::byte> rows[] = {BytesOf(pixels), BytesOf(labels)};
    std::vector<SampleRef> refs;
    for (int64_t i = 0; i < count; ++i) refs.push_back({0, i});
    const absl::Status status =
        is_evaluation ? (*dataset)->ReadEvaluation(0, count, rows) : (*dataset)->Read(refs, rows);
    if (!status.ok()) return ErrorOf(status);
    std::vector<std::string> texts;
    for (int64_t i = 0; i < count; ++i) {
      texts.push_back(absl::StrCat(std::string(1, pixels[12 * i + 11]), labels[i]));
    }
    return absl::StrJoin(texts, " ");
  }

  static std::string ErrorOf(const absl::Status& status) {
    return absl::StrCat(ReasonOf(status), " ", status.message());
  }

  const std::string folder_;
  v1::DataSpec spec_;
};

TEST_F(ImagesDatasetTest, EachFolderIsAClassInTheOrderOfNames) {
  WriteImage("train/n02/b.jpg", 'd');
  WriteImage("train/n02/a.jpg", 'c');
  WriteImage("train/n01/z/y.png", 'b');
  WriteImage("train/n01/x.jpeg", 'a');
  Write("train/.cache/x", "x");
  Write("train/n01/.DS_Store", "x");
  Write("train/classes.txt", "x");
  const auto dataset = Open();
  EXPECT_EQ(Samples(dataset), "a0 b0 c1 d1");
  EXPECT_EQ((*dataset)->evaluation_samples(), 0);
  EXPECT_EQ((*dataset)->row_values(0).size(), 3u);
  EXPECT_TRUE((*dataset)->row_values(1).empty());
}

TEST_F(ImagesDatasetTest, AListNamesFilesAndClasses) {
  WriteImage("train/a b.jpg", 'a');
  WriteImage("train/c,d.jpg", 'c');
  WriteImage("else.jpg", 'e');
  spec_.mutable_images()->set_list(Write(
      "list.txt", absl::StrCat("a b.jpg\t2\r\nc,d.jpg, 0\n\n", folder_, "/else.jpg 1\na b.jpg,0")));
  EXPECT_EQ(Samples(Open()), "a2 c0 e1 a0");
}

TEST_F(ImagesDatasetTest, AListWithoutAPathStartsFromItsFolder) {
  WriteImage("lists/in/a.jpg", 'a');
  WriteImage("lists/held/b.jpg", 'b');
  spec_.mutable_images()->clear_path();
  spec_.mutable_images()->set_list(Write("lists/train.txt", "in/a.jpg 0\n"));
  spec_.mutable_images()->set_eval_list(Write("lists/held/val.txt", "b.jpg 1\n"));
  EXPECT_EQ(Samples(Open()), "a0");
  EXPECT_EQ(Samples(Open(), /*is_evaluation=*/true), "b1");
}

TEST_F(ImagesDatasetTest, AListOfMissingFilesIsFoundAtTheStart) {
  spec_.mutable_images()->set_list(Write("list.txt", "none.jpg 0\n"));
  const std::string error = ErrorOf(Open().status());
  EXPECT_THAT(error, testing::StartsWith("DATA_NOT_FOUND data.images.list: "));
  EXPECT_THAT(error, HasSubstr("/train/none.jpg: no such file"));
}

TEST_F(ImagesDatasetTest, AFaultyLineIsNamedByItsNumber) {
  WriteImage("train/a.jpg", 'a');
  const auto error = [&](const std::string& line) {
    spec_.mutable_images()->set_list(Write("list.txt", absl::StrCat("a.jpg 0\n", line, "\n")));
    return Samples(Open());
  };
  EXPECT_EQ(error("b.jpg"), absl::StrCat("DATA_INVALID data.images.list: ", folder_,
                                         "/list.txt: line 2 has no class; a line is: PATH CLASS"));
  EXPECT_THAT(error("b.jpg cat"), HasSubstr("line 2 has the class 'cat', which is no number"));
  EXPECT_THAT(error("b.jpg -1"), HasSubstr("line 2 has the class -1, which is below 0"));
  EXPECT_THAT(error("b.jpg 99999999999"), HasSubstr("line 2 has the class '99999999999'"));
  EXPECT_THAT(error(std::string(3 << 20, 'x')), HasSubstr("line 2 is longer than 1048576 bytes"));
  EXPECT_THAT(error("b.jpg 3"), HasSubstr("line 2 has the class 3; the model takes 0 to 2: set "
                                          "model.zoo.args.classes to 4, or correct the label"));
  spec_.mutable_images()->set_list(Write("list.txt", "path,label\na.jpg,0\n"));
  EXPECT_THAT(Samples(Open()), HasSubstr("line 1 has the class 'label', which is no number; remove "
                                         "the line if it is a header"));
  spec_.mutable_images()->set_list(Write("list.txt", "\n"));
  EXPECT_THAT(Samples(Open()), HasSubstr("names no image"));
}

TEST_F(ImagesDatasetTest, ChecksTheFoldersOfClasses) {
  EXPECT_THAT(Samples(Open()), HasSubstr("DATA_NOT_FOUND data.images.path: "));
  fs::create_directories(folder_ + "/train");
  EXPECT_THAT(Samples(Open()), HasSubstr("has no folder; each class needs one"));
  for (const char* name : {"a", "b", "c"}) WriteImage(absl::StrCat("train/", name, "/1"), 'a');
  fs::create_directories(folder_ + "/train/bb");
  EXPECT_THAT(Samples(Open()), HasSubstr("train/bb: the folder of class 2 has no file"));
  WriteImage("train/bb/1", 'a');
  EXPECT_THAT(Samples(Open()), HasSubstr("4 classes do not fit the model's 3: set "
                                         "model.zoo.args.classes to 4"));
}

TEST_F(ImagesDatasetTest, ADamagedFileIsFoundWhenItIsRead) {
  WriteImage("train/a/1.jpg", 'a');
  Write("train/a/2.jpg", "text");
  const auto dataset = Open();
  ASSERT_TRUE(dataset.ok());
  EXPECT_EQ(Samples(dataset), absl::StrCat("DATA_DAMAGED data.images.path: ", folder_,
                                           "/train/a/2.jpg: record 1 at byte 0: is no image"));
  fs::remove(folder_ + "/train/a/2.jpg");
  EXPECT_THAT(Samples(dataset), HasSubstr("DATA_NOT_FOUND data.images.path: "));
}

TEST_F(ImagesDatasetTest, AThreadKeepsNoMemoryOfALargeFile) {
  const std::string path = Write("train/a/1.jpg", "text");
  fs::resize_file(path, 65 << 20);
  const auto dataset = Open();
  const size_t before = mallinfo2().hblkhd;  // bytes of large blocks
  EXPECT_THAT(Samples(dataset), HasSubstr("is no image"));
  EXPECT_EQ(mallinfo2().hblkhd, before);
}

TEST_F(ImagesDatasetTest, ReadsHeldOutImagesOfAnotherFolder) {
  WriteImage("train/a/1", 'a');
  WriteImage("train/b/1", 'b');
  WriteImage("val/a/1", 'c');
  spec_.mutable_images()->set_eval_path(folder_ + "/val");
  EXPECT_THAT(Samples(Open()), HasSubstr("val: lacks the folder b of the training data"));
  WriteImage("val/b/1", 'd');
  EXPECT_EQ(Samples(Open(), /*is_evaluation=*/true), "c0 d1");
  WriteImage("val/c/1", 'd');
  EXPECT_THAT(Samples(Open()), HasSubstr("val: has the folders c which the training data lack"));
  spec_.mutable_images()->clear_eval_path();
  spec_.mutable_images()->set_eval_list(Write("list.txt", "b/1 1\n"));
  EXPECT_EQ(Samples(Open(), /*is_evaluation=*/true), "b1");
  spec_.mutable_images()->set_holdout(0.1);
  EXPECT_THAT(Samples(Open()), HasSubstr("data.images.holdout: cannot be given together"));
}

TEST_F(ImagesDatasetTest, TheNameDecidesWhatIsHeldOut) {
  for (int i = 0; i < 300; ++i) WriteImage(absl::StrCat("train/a/", i), 'a');
  spec_.mutable_images()->set_holdout(0.2);
  const auto before = Open().value();
  EXPECT_EQ(before->samples() + before->evaluation_samples(), 300);
  EXPECT_NEAR(before->evaluation_samples(), 60, 25);
  WriteImage("train/a/!", 'a');
  const auto after = Open().value();
  EXPECT_LE(after->samples() - before->samples(), 1);
  EXPECT_LE(after->evaluation_samples() - before->evaluation_samples(), 1);
  EXPECT_NE(before->fingerprint(), after->fingerprint());
}

TEST_F(ImagesDatasetTest, TheFingerprintCoversNamesSizesAndLabels) {
  WriteImage("train/a/1", 'a');
  WriteImage("train/b/1", 'b');
  const std::string first = Open().value()->fingerprint();
  EXPECT_EQ(Open().value()->fingerprint(), first);
  EXPECT_TRUE(Open().value()->is_slow()) << "threads share a batch image by image";
  Write("train/b/1", "IMGbb");
  const std::string longer = Open().value()->fingerprint();
  fs::rename(folder_ + "/train/b/1", folder_ + "/train/b/2");
  const std::string renamed = Open().value()->fingerprint();
  fs::rename(folder_ + "/train/b", folder_ + "/train/A");
  const std::string relabelled = Open().value()->fingerprint();
  EXPECT_EQ((std::set<std::string>{first, longer, renamed, relabelled}).size(), 4u);
}

TEST_F(ImagesDatasetTest, CountsOpeningReadingAndBytes) {
  WriteImage("train/a/1", 'a');
  const auto dataset = Open();
  StageTimes times;
  StageTimes* const before = SetStageTimes(&times);
  Samples(dataset);
  SetStageTimes(before);
  EXPECT_GT(times.nanoseconds[static_cast<int>(InputStage::kOpen)], 0);
  EXPECT_GT(times.nanoseconds[static_cast<int>(InputStage::kRead)], 0);
  EXPECT_EQ(times.read_bytes, 4);
}

TEST_F(ImagesDatasetTest, RefusesMoreNamesThanTheMemoryHolds) {
  WriteImage("train/a/1", 'a');
  EXPECT_TRUE(Open(/*held_bytes_max=*/13).ok());
  WriteImage("train/a/2", 'a');
  WriteImage("train/a/a long name", 'a');
  EXPECT_TRUE(absl::IsResourceExhausted(Open(/*held_bytes_max=*/13).status()));
}

TEST_F(ImagesDatasetTest, ChecksTheModel) {
  WriteImage("train/a/1", 'a');
  v1::Graph graph = ImageGraph(3);
  graph.mutable_inputs(0)->mutable_shape()->RemoveLast();
  const auto dataset = OpenImagesDataset(spec_, graph, {}, FakeImageRows::Maker());
  EXPECT_THAT(ErrorOf(dataset.status()),
              HasSubstr("but the model's are f32[-1, 3, 2] and i32[-1]"));
}

}  // namespace
}  // namespace muster::images_dataset_test
