#include "lib/data/source/dataset_check.h"

#include <sys/stat.h>
#include <zlib.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/data/format/npy.h"
#include "lib/data/format/testing/example.pb.h"
#include "lib/data/format/tfrecord.h"
#include "lib/data/format/zip_writer.h"
#include "lib/status/field_fault.h"
#include "lib/status/status.h"

namespace muster::dataset_check_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

void AddInput(v1::Graph& graph, const std::string& name, v1::DType dtype,
              const std::vector<int64_t>& shape) {
  v1::GraphInput& input = *graph.add_inputs();
  input.set_name(name);
  input.set_dtype(dtype);
  for (const int64_t size : shape) input.add_shape(size);
}

// A model of images with two classes.
v1::Graph ImageModel(const std::vector<int64_t>& image = {-1, 3, 8, 8}) {
  v1::Graph graph;
  AddInput(graph, "input", v1::DTYPE_F32, image);
  AddInput(graph, "target", v1::DTYPE_I32, {-1});
  v1::Parameter& weight = *graph.add_parameters();
  weight.set_name("weight");
  for (const int64_t size : {2, 192}) weight.add_shape(size);
  const auto add = [&](const char* op, const std::vector<std::string>& inputs,
                       const std::vector<std::string>& outputs) {
    v1::Node& node = *graph.add_nodes();
    node.set_name(op);
    node.set_op(op);
    for (const std::string& name : inputs) node.add_inputs(name);
    for (const std::string& name : outputs) node.add_outputs(name);
  };
  add("Flatten", {"input"}, {"flat"});
  add("Linear", {"flat", "weight"}, {"logits"});
  add("SoftmaxCrossEntropy", {"logits", "target"}, {"loss", "lse"});
  graph.set_logits("logits");
  graph.set_loss("loss");
  return graph;
}

// A model of rows of two numbers with two classes.
v1::Graph TableModel() {
  v1::Graph graph = ImageModel({-1, 2});
  graph.mutable_parameters(0)->set_shape(1, 2);
  return graph;
}

std::string Archive(const std::map<std::string, std::string>& arrays) {
  ZipWriter writer;
  std::string archive;
  for (const auto& [name, content] : arrays) {
    const auto* bytes = reinterpret_cast<const Bytef*>(content.data());
    absl::StrAppend(&archive,
                    writer.Next(name + ".npy", crc32_z(0, bytes, content.size()), content.size()),
                    content);
  }
  return archive + writer.End();
}

class DatasetCheckTest : public ::testing::Test {
 protected:
  DatasetCheckTest() {
    folder_ = ::testing::TempDir() + "/dataset_check";
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  std::string Write(const std::string& name, absl::string_view content) {
    const std::string path = folder_ + "/" + name;
    fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  // Returns "REASON field: message", or "ok", or "ok N" for N samples.
  std::string Check(const v1::Graph& graph = ImageModel()) {
    const auto samples = CheckDataset(data_, graph, kNoLimit);
    if (samples.ok()) return *samples ? absl::StrCat("ok ", **samples) : "ok";
    const std::vector<FieldFault> faults = FaultsOf(samples.status());
    EXPECT_EQ(faults.size(), 1) << samples.status();
    EXPECT_EQ(samples.status().message(),
              absl::StrCat(faults[0].field, ": ", faults[0].description));
    return absl::StrCat(ReasonOf(samples.status()), " ", samples.status().message());
  }
  v1::TfrecordData& Tfrecord(const std::string& path) {
    v1::TfrecordData& tfrecord = *data_.mutable_tfrecord();
    tfrecord.set_path(path);
    (*tfrecord.mutable_inputs())["input"].mutable_image();
    (*tfrecord.mutable_inputs())["target"].mutable_fixed();
    return tfrecord;
  }
  // A table with two numbers and a category.
  v1::CsvData& Csv(absl::string_view content) {
    v1::CsvData& csv = *data_.mutable_csv();
    csv.set_path(Write("a.csv", content));
    (*csv.mutable_inputs())["input"].add_columns("1-2");
    csv.mutable_inputs()->at("input").mutable_number();
    (*csv.mutable_inputs())["target"].add_columns("3");
    csv.mutable_inputs()->at("target").mutable_hash()->set_buckets(2);
    return csv;
  }
  v1::TarData& Tar(const std::string& path) {
    v1::TarData& tar = *data_.mutable_tar();
    tar.set_path(path);
    (*tar.mutable_inputs())["input"].mutable_image();
    (*tar.mutable_inputs())["target"].mutable_integer();
    return tar;
  }

  std::string folder_;
  v1::DataSpec data_;
};

// A record with the features `input`, bytes, and `target`, an integer.
std::string Record(const std::string& input = "input", const std::string& target = "target") {
  wire::Example example;
  auto& features = *example.mutable_features()->mutable_feature();
  features[input].mutable_bytes_list()->add_value("image");
  features[target].mutable_int64_list()->add_value(1);
  std::string record;
  AppendTfrecord(example.SerializeAsString(), record);
  return record;
}

std::string TarMember() {
  std::string header(512, '\0');
  header.replace(0, 5, "a.jpg");
  header.replace(257, 5, "ustar");
  header.replace(148, 8, "        ");
  int sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  std::string digits(8, '\0');
  snprintf(digits.data(), digits.size(), "%06o", sum);
  header.replace(148, 8, digits);
  return header;
}

TEST_F(DatasetCheckTest, OpensTodaysSourcesAndCountsTheirSamples) {
  data_.mutable_synthetic()->set_samples(70);
  EXPECT_EQ(Check(), "ok 70");
  data_.mutable_text()->set_path(folder_ + "/none");
  v1::Graph text;
  AddInput(text, "input", v1::DTYPE_I32, {-1, 4});
  AddInput(text, "target", v1::DTYPE_I32, {-1, 4});
  EXPECT_THAT(Check(text), HasSubstr("DATA_NOT_FOUND data.text.path: "));
  data_.mutable_text()->set_path(Write("text", std::string(100, 'x')));
  EXPECT_EQ(Check(text), "ok 24");
}

TEST_F(DatasetCheckTest, ImagesNeedFoldersThatFitTheClasses) {
  v1::ImagesData& images = *data_.mutable_images();
  images.set_path(folder_);
  EXPECT_THAT(Check(), HasSubstr("DATA_TOO_SMALL data.images.path: "));
  Write("cat/1.jpg", "no image");
  Write("dog/1.jpg", "");
  Write(".git/x", "");
  EXPECT_EQ(Check(), "ok") << "no image is decoded";
  fs::remove(folder_ + "/dog/1.jpg");
  Write("dog/.hidden", "");
  EXPECT_THAT(Check(), HasSubstr("DATA_TOO_SMALL data.images.path: "));
  EXPECT_THAT(Check(), HasSubstr("/dog: the folder of a class has no file"));
  Write("dog/a/b/1.jpg", "");
  EXPECT_EQ(Check(), "ok");
  Write("owl/1.jpg", "");
  EXPECT_THAT(Check(), HasSubstr("has a folder for each of more than 2 classes"));
  images.set_path(folder_ + "/none");
  EXPECT_THAT(Check(), HasSubstr("DATA_NOT_FOUND data.images.path: "));
  images.set_list(folder_ + "/list.txt");
  EXPECT_THAT(Check(), HasSubstr("DATA_NOT_FOUND data.images.list: "));
  Write("list.txt", "cat/1.jpg 0\n");
  images.clear_path();
  EXPECT_EQ(Check(), "ok");
  images.set_eval_path(folder_ + "/none");
  EXPECT_THAT(Check(), HasSubstr("DATA_NOT_FOUND data.images.eval_path: "));
}

TEST_F(DatasetCheckTest, AFolderOfTooManyEntriesIsLeftToTheWorkers) {
  data_.mutable_images()->set_path(folder_);
  Write("0", "");
  EXPECT_THAT(Check(), HasSubstr("holds no folder"));
  for (int i = 1; i <= 100'000; ++i) {
    ASSERT_EQ(mknod(absl::StrCat(folder_, "/", i).c_str(), S_IFREG | 0600, 0), 0);
  }
  EXPECT_EQ(Check(), "ok");
  fs::remove_all(folder_);
}

TEST_F(DatasetCheckTest, HeldOutImagesGetTheModelsSizeToo) {
  v1::CenterCrop& crop = *data_.mutable_image()->add_train()->mutable_center_crop();
  crop.set_size(8);
  const auto needs_evaluate = HasSubstr("INVALID_SPEC data.image.evaluate: no transform sets");
  const std::string images = folder_ + "/images";
  Write("images/cat/1.jpg", "");
  data_.mutable_images()->set_path(images);
  EXPECT_EQ(Check(), "ok");
  data_.mutable_images()->set_holdout(0.1);
  EXPECT_THAT(Check(), needs_evaluate);
  data_.mutable_images()->set_holdout(0);
  data_.mutable_images()->set_eval_list(Write("list.txt", "images/cat/1.jpg 0\n"));
  EXPECT_THAT(Check(), needs_evaluate);

  Tfrecord(Write("a.tfrecord", Record()));
  EXPECT_EQ(Check(), "ok");
  data_.mutable_tfrecord()->set_eval_path(folder_ + "/a.tfrecord");
  EXPECT_THAT(Check(), needs_evaluate);
  Tar(Write("a.tar", TarMember())).set_holdout(0.1);
  EXPECT_THAT(Check(), needs_evaluate);
  *data_.mutable_image()->add_evaluate()->mutable_center_crop() = crop;
  EXPECT_EQ(Check(), "ok");
}

TEST_F(DatasetCheckTest, ImagesFillTheInputOfAModelOfImages) {
  data_.mutable_images()->set_path(folder_);
  Write("cat/1.jpg", "");
  EXPECT_EQ(Check(ImageModel({-1, 1, 8, 24})), "ok");
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{-1, 2, 8, 12}, {-1, 192}}) {
    EXPECT_THAT(
        Check(ImageModel(shape)),
        HasSubstr("DATA_INVALID data.images: images are f32[-1, 1 or 3, height, width], but"));
  }
  v1::Graph third = ImageModel();
  AddInput(third, "mask", v1::DTYPE_F32, {-1});
  EXPECT_THAT(Check(third), HasSubstr("the model also reads 'mask'"));
  v1::Graph rows = ImageModel();
  rows.mutable_inputs(1)->add_shape(7);
  EXPECT_THAT(Check(rows), HasSubstr("classes are i32[-1], but the model's target is i32[-1, 7]"));
}

TEST_F(DatasetCheckTest, InputsOfTheSpecAreThoseOfTheModel) {
  v1::TfrecordData& tfrecord = Tfrecord(Write("a.tfrecord", Record()));
  EXPECT_EQ(Check(), "ok");
  (*tfrecord.mutable_inputs())["mask"].mutable_fixed();
  EXPECT_THAT(Check(), HasSubstr("data.tfrecord.inputs.mask: the model has no such input; it reads "
                                 "input, target"));
  tfrecord.mutable_inputs()->erase("mask");
  tfrecord.mutable_inputs()->erase("target");
  EXPECT_THAT(Check(), HasSubstr("data.tfrecord.inputs.target: required: how the model's target, "
                                 "i32[-1], is filled"));
  (*tfrecord.mutable_inputs())["target"].mutable_image();
  EXPECT_THAT(Check(), HasSubstr("data.tfrecord.inputs.target: images are f32["));
}

TEST_F(DatasetCheckTest, LooksAtTheFirstRecord) {
  v1::TfrecordData& tfrecord = Tfrecord(Write("a.tfrecord", ""));
  EXPECT_EQ(Check(), "ok") << "a shard may be empty";
  Write("a.tfrecord", Record().substr(0, 11));
  EXPECT_THAT(Check(), HasSubstr("is no TFRecord file: it ends in the header"));
  std::string damaged = Record();
  damaged[1] = 1;
  Write("a.tfrecord", damaged);
  EXPECT_THAT(Check(), HasSubstr("DATA_INVALID data.tfrecord.path: "));
  Write("a.tfrecord", "\x1f\x8b and more bytes");
  EXPECT_THAT(Check(),
              HasSubstr(absl::StrCat("run: muster data convert ", folder_, "/a.tfrecord OUT")));
  Write("a.tfrecord", "\x28\xb5\x2f\xfd and more bytes");
  EXPECT_THAT(Check(), HasSubstr("is compressed with zstd, which has no random access; run: "));
  tfrecord.set_path(folder_ + "/none");
  EXPECT_THAT(Check(), HasSubstr("DATA_NOT_FOUND data.tfrecord.path: "));
  tfrecord.set_path(Write("b.tfrecord", Record()));
  tfrecord.set_eval_path(folder_ + "/a.tfrecord");
  EXPECT_THAT(Check(), HasSubstr("data.tfrecord.eval_path: "));
}

TEST_F(DatasetCheckTest, FindsTheFilesOfFoldersAndPatterns) {
  v1::TarData& tar = Tar(folder_ + "/train-{000..003}.tar");
  EXPECT_THAT(Check(), HasSubstr("DATA_NOT_FOUND data.tar.path: "));
  for (const int number : {0, 1, 2}) Write(absl::StrCat("train-00", number, ".tar"), TarMember());
  EXPECT_THAT(Check(), HasSubstr("train-003.tar: matches no regular file"));
  tar.set_path(folder_ + "/train-00{0..}.tar");
  EXPECT_THAT(Check(), HasSubstr("'{0..}' is no range such as {000..146}"));
  for (const char* pattern : {"/*.tar", "/t?ain-*", "/train-{000..002}.tar", "/../*/train-000.*"}) {
    tar.set_path(folder_ + pattern);
    EXPECT_EQ(Check(), "ok") << pattern;
  }
  tar.set_path(folder_);
  Write("README", "no tar");
  EXPECT_EQ(Check(), "ok") << "other files may lie beside the samples";
  tar.set_path(folder_ + "/R*");
  EXPECT_THAT(Check(), HasSubstr("README: is no tar file"));
  tar.set_path(folder_ + "/empty");
  fs::create_directory(folder_ + "/empty");
  EXPECT_THAT(Check(), HasSubstr("DATA_TOO_SMALL data.tar.path: "));
  tar.set_path("/dev/null");
  EXPECT_THAT(Check(), HasSubstr("is not a regular file"));
}

TEST_F(DatasetCheckTest, AFolderOfArchivesHasOtherFilesToo) {
  for (int i = 0; i < 20; ++i) {
    Write(absl::StrCat("img2dataset/", i, ".parquet"), "PAR1");
    Write(absl::StrCat("img2dataset/", i, "_stats.json"), "{}");
  }
  Tar(folder_ + "/img2dataset");
  EXPECT_THAT(Check(), HasSubstr("the folder holds no .tar file"));
  Write("img2dataset/00000.tar", TarMember());
  EXPECT_EQ(Check(), "ok");
}

TEST_F(DatasetCheckTest, AFolderOfBracesStandsForItsFiles) {
  Write("train/a.tar", TarMember());
  Write("train/README", "no tar");
  v1::TarData& tar = Tar(folder_ + "/{train,extra}");
  EXPECT_THAT(Check(), HasSubstr("/extra: matches no regular file"));
  Write("extra/b.tar", TarMember());
  EXPECT_EQ(Check(), "ok");
  tar.set_path(folder_ + "/t*");
  EXPECT_THAT(Check(), HasSubstr("matches no regular file"));
  tar.set_path(folder_ + "/../*/train");
  EXPECT_EQ(Check(), "ok");
}

TEST_F(DatasetCheckTest, ManyGroupsOfBracesAreRefused) {
  std::string pattern = folder_ + "/";
  for (int i = 0; i < 40; ++i) pattern += "{a,b}";
  Tar(pattern);
  EXPECT_THAT(Check(), HasSubstr("more than 1000000 files, which is the limit"));
}

TEST_F(DatasetCheckTest, AFolderThatCannotBeOpenedIsNamed) {
  fs::create_symlink("loop", folder_ + "/loop");
  Tar(folder_ + "/loop/{a,b}.tar");
  EXPECT_THAT(Check(), HasSubstr("/loop/a.tar: too many levels of symbolic links"));
}

TEST_F(DatasetCheckTest, LooksAtArchivesAndTables) {
  std::string tar = TarMember();
  tar[0] = 'b';
  Tar(Write("a.tar", tar));
  EXPECT_THAT(Check(), HasSubstr("the checksum of its first header differs"));
  Write("a.tar", std::string(1024, '\0'));
  EXPECT_EQ(Check(), "ok") << "an archive without members";

  v1::NpzData& npz = *data_.mutable_npz();
  for (const char* name : {"input", "target"}) (*npz.mutable_inputs())[name] = "array";
  npz.set_path(Write("a.npz", "\x93NUMPY"));
  EXPECT_THAT(Check(), HasSubstr("data.npz.path: "));

  Csv("1,2,red\n");
  Write("a.csv", absl::string_view("1\0", 2));
  EXPECT_THAT(Check(TableModel()), HasSubstr("data.csv.path: "));
}

TEST_F(DatasetCheckTest, TablesHaveTheSeparatorOfTheFirst) {
  v1::CsvData& csv = Csv("");
  csv.set_path(Write("a.tsv", "1\t2\tred\n"));
  csv.set_eval_path(Write("b.txt", "1\t2\tred\n"));
  EXPECT_EQ(Check(TableModel()), "ok");
  csv.clear_eval_path();
  Write("c.txt", "\n");
  csv.set_path(folder_ + "/{a.tsv,b.txt,c.txt}");
  EXPECT_EQ(Check(TableModel()), "ok");
}

TEST_F(DatasetCheckTest, ColumnsOfATableFillTheInputs) {
  v1::CsvData& csv = Csv("1,2,red\n");
  EXPECT_EQ(Check(TableModel()), "ok");
  csv.set_header(true);
  csv.mutable_inputs()->at("input").set_columns(0, "width");
  EXPECT_THAT(Check(TableModel()),
              HasSubstr("DATA_INVALID data.csv.inputs.input.columns: no column "
                        "has the name 'width'; there are '1', '2', 'red'"));
  for (const auto& [columns, message] : std::vector<std::pair<std::string, std::string>>{
           {"1-3", "3 columns for the 2 elements of the model's input"},
           {"2-1", "'2-1': a range begins with its lower number"},
           {"3-4", "'3-4': columns are 1 to 3"}}) {
    csv.mutable_inputs()->at("input").set_columns(0, columns);
    EXPECT_THAT(Check(TableModel()), HasSubstr(message));
  }
  csv.mutable_inputs()->at("input").set_columns(0, "1-2");
  csv.mutable_inputs()->at("input").mutable_hash()->set_buckets(2);
  EXPECT_THAT(Check(TableModel()), HasSubstr("categories are ids, but the model's input is f32"));
  csv.mutable_inputs()->at("input").mutable_number();
  csv.mutable_inputs()->at("target").mutable_hash()->set_buckets(3);
  EXPECT_THAT(Check(TableModel()), HasSubstr("3 buckets give ids up to 2; the model takes 0 to 1"));
  csv.set_path(folder_ + "/{a,b}.csv");
  Write("b.csv", "");
  csv.mutable_inputs()->at("target").mutable_hash()->set_buckets(2);
  EXPECT_EQ(Check(TableModel()), "ok") << "one of several files may be empty";
}

TEST_F(DatasetCheckTest, AVocabularyHasWordsThatTheModelTakes) {
  v1::CsvData& csv = Csv("1,2,red\n");
  csv.mutable_inputs()->at("target").mutable_vocabulary()->set_path(folder_ + "/words");
  const std::string field = "data.csv.inputs.target.vocabulary.path: ";
  EXPECT_THAT(Check(TableModel()), HasSubstr("DATA_NOT_FOUND " + field));
  Write("words", "");
  EXPECT_THAT(Check(TableModel()), HasSubstr("DATA_TOO_SMALL " + field));
  Write("words", "red\nblue\n");
  EXPECT_EQ(Check(TableModel()), "ok");
  Write("words", "red\nblue\ngreen\n");
  EXPECT_THAT(Check(TableModel()), HasSubstr("3 lines give ids up to 2; the model takes 0 to 1"));
}

TEST_F(DatasetCheckTest, FeaturesOfTheFirstRecordsFillTheInputs) {
  v1::TfrecordData& tfrecord = Tfrecord(Write("a.tfrecord", Record("input", "label")));
  EXPECT_THAT(Check(), HasSubstr("DATA_INVALID data.tfrecord.inputs.target: "));
  EXPECT_THAT(Check(), HasSubstr("no feature 'target' in the first 1 records; the first one has: "
                                 "input (bytes), label (integers)"));
  tfrecord.mutable_inputs()->at("target").mutable_fixed()->set_feature("label");
  EXPECT_EQ(Check(), "ok");
  tfrecord.mutable_inputs()->at("target").mutable_fixed()->set_offset(-0.5);
  EXPECT_THAT(Check(), HasSubstr("data.tfrecord.inputs.target.fixed.offset: must be an integer"));
  auto& scatter = *tfrecord.mutable_inputs()->at("target").mutable_scatter();
  scatter.set_positions("label");
  scatter.set_values("label");
  scatter.set_fill(-1);
  EXPECT_THAT(Check(), HasSubstr("data.tfrecord.inputs.target.scatter.fill: is -1, but the model's "
                                 "target takes 0 to 1"));
  std::string text;
  AppendTfrecord("no Example", text);
  Write("a.tfrecord", text);
  tfrecord.mutable_inputs()->at("target").mutable_fixed();
  EXPECT_THAT(Check(), HasSubstr("DATA_DAMAGED data.tfrecord.path: "));
}

TEST_F(DatasetCheckTest, ALaterFileMayHaveAListOfVariableSize) {
  v1::TfrecordData& tfrecord = Tfrecord(Write("a.tfrecord", Record("input", "label")));
  tfrecord.mutable_inputs()->at("target").mutable_variable();
  EXPECT_THAT(Check(), HasSubstr("no feature 'target' in the first 1 records"));
  tfrecord.set_path(folder_ + "/{a,b}.tfrecord");
  Write("b.tfrecord", Record());
  EXPECT_EQ(Check(), "ok");
}

TEST_F(DatasetCheckTest, AFeatureMayBeginInALaterFile) {
  std::string records;
  for (int i = 0; i < 1000; ++i) records += Record("input", "label");
  v1::TfrecordData& tfrecord = Tfrecord(Write("a.tfrecord", records));
  tfrecord.mutable_inputs()->at("target").mutable_variable();
  EXPECT_THAT(Check(), HasSubstr("no feature 'target' in the first 1000 records"));
  tfrecord.set_path(folder_ + "/{a,b}.tfrecord");
  Write("b.tfrecord", Record());
  EXPECT_EQ(Check(), "ok");
}

TEST_F(DatasetCheckTest, ArraysOfAnArchiveFillTheInputs) {
  v1::NpzData& npz = *data_.mutable_npz();
  npz.set_path(
      Write("a.npz", Archive({{"x", MakeNpyHeader(NpyType::kF32, {3, 2}) + std::string(24, '\0')},
                              {"y", MakeNpyHeader(NpyType::kU8, {3}) + std::string(3, '\1')}})));
  (*npz.mutable_inputs())["input"] = "x";
  (*npz.mutable_inputs())["target"] = "labels";
  EXPECT_THAT(Check(TableModel()), HasSubstr("DATA_INVALID data.npz.inputs.target: "));
  EXPECT_THAT(Check(TableModel()), HasSubstr("has no array 'labels'; it has 'x', 'y'"));
  (*npz.mutable_inputs())["target"] = "y";
  EXPECT_EQ(Check(TableModel()), "ok 3");
  EXPECT_THAT(Check(), HasSubstr("[3, 2] but the model's input is [-1, 3, 8, 8]"));
}

TEST_F(DatasetCheckTest, LinesOfAListAreChecked) {
  v1::ImagesData& images = *data_.mutable_images();
  images.set_list(Write("list.txt", "cat/1.jpg 0\ncat/2.jpg\n"));
  EXPECT_THAT(Check(), HasSubstr("list.txt: line 2 has no class; a line is: PATH CLASS"));
  Write("list.txt", "cat/1.jpg 0\ncat/2.jpg 9\n");
  EXPECT_THAT(Check(), HasSubstr("DATA_NOT_FOUND data.images.list: "));
  Write("cat/1.jpg", "");
  EXPECT_THAT(Check(), HasSubstr("line 2 has the class 9; the model takes 0 to 1"));
  std::string lines;
  while (lines.size() <= 1 << 20) lines += "cat/1.jpg 1\n";
  Write("list.txt", lines + "cat/2.jpg 9\n");
  EXPECT_EQ(Check(), "ok") << "more than the first MiB is left to the workers";
}

TEST_F(DatasetCheckTest, ErrorsOfAMixtureNameThePart) {
  v1::MixtureData& mixture = *data_.mutable_mixture();
  mixture.add_parts()->mutable_data()->mutable_synthetic()->set_samples(70);
  mixture.add_parts()->mutable_data()->mutable_images()->set_path(folder_ + "/none");
  EXPECT_THAT(Check(), HasSubstr("DATA_NOT_FOUND data.mixture.parts[1].data.images.path: /"));
  Write("cat/1.jpg", "");
  mixture.mutable_parts(1)->mutable_data()->mutable_images()->set_path(folder_);
  EXPECT_EQ(Check(), "ok");
}

}  // namespace
}  // namespace muster::dataset_check_test
