#include "lib/job/path_rules.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "lib/status/status.h"

namespace muster::path_rules_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class PathRulesTest : public ::testing::Test {
 protected:
  PathRulesTest() {
    EXPECT_NE(mkdtemp(home_.data()), nullptr);
    for (const char* folder : {"/data", "/data/mnist", "/more", "/database"}) {
      fs::create_directory(home_ + folder);
    }
    std::ofstream(home_ + "/secret") << "x";
    std::ofstream(home_ + "/data/mnist/images") << "x";
    fs::create_symlink(home_ + "/secret", home_ + "/data/link");
    fs::create_symlink(home_ + "/data", home_ + "/way");
    rules_ = *PathRules::Parse(absl::StrCat(home_, "/data, ", home_, "/more/"));
  }
  bool Allows(const std::string& path) const { return rules_.Check(home_ + path).ok(); }

  std::string home_ = ::testing::TempDir() + "/paths-XXXXXX";
  PathRules rules_;
};

TEST_F(PathRulesTest, AllowsEveryPathThatLeadsIntoAFolder) {
  EXPECT_TRUE(Allows("/data"));
  EXPECT_TRUE(Allows("/data/mnist/images"));
  EXPECT_TRUE(Allows("/more/not/there/yet"));
  EXPECT_TRUE(Allows("/data/../more/x"));
  EXPECT_TRUE(Allows("/way/mnist/images")) << "a link that leads into it";
  EXPECT_TRUE(Allows("/data/mnist/./images"));
}

TEST_F(PathRulesTest, ChecksTheFileOfAnExternalModelAndNotItsProgram) {
  v1::JobSpec spec;
  spec.mutable_model()->mutable_external()->set_path(home_ + "/secret");
  spec.mutable_program()->set_directory("/elsewhere");
  EXPECT_THAT(rules_.FaultsOf(spec),
              ElementsAre(Field("field", &FieldFault::field, "model.external.path")));
  spec.mutable_model()->mutable_external()->set_path(home_ + "/data/model.safetensors");
  EXPECT_THAT(rules_.FaultsOf(spec), IsEmpty());

  spec.mutable_model()->mutable_external()->set_path("model.safetensors");
  spec.mutable_program()->set_directory("code");
  EXPECT_TRUE(MakePathsAbsolute(spec, "/home/me"));
  EXPECT_EQ(spec.model().external().path(), "/home/me/model.safetensors");
  EXPECT_EQ(spec.program().directory(), "code") << "it is a folder of the workers";
}

TEST_F(PathRulesTest, AnUploadedModelIsNoPathOfTheMachine) {
  const std::string sum(64, 'a');
  v1::JobSpec spec;
  spec.mutable_model()->mutable_external()->set_path("uploads/" + sum + ".safetensors");
  EXPECT_THAT(rules_.FaultsOf(spec), IsEmpty());
  EXPECT_FALSE(MakePathsAbsolute(spec, "/home/me"));
  for (const std::string& path :
       {"uploads/" + sum, "uploads/../" + sum + ".safetensors", "uploads/" + sum + "a.safetensors",
        "uploads/" + std::string(64, 'A') + ".safetensors", "/uploads/" + sum + ".safetensors",
        "uploads/" + sum.substr(3) + "/..", std::string("uploads/")}) {
    EXPECT_FALSE(IsUploadedModel(path)) << path;
    spec.mutable_model()->mutable_external()->set_path(path);
    EXPECT_EQ(rules_.FaultsOf(spec).size(), 1) << path;
  }
}

TEST_F(PathRulesTest, RefusesPathsOutsideOfTheFolders) {
  for (const char* path : {"/secret", "/data/../secret", "/data/link", "/database", "/database/x",
                           "", "/data/mnist/../../secret", "/way/../secret"}) {
    const absl::Status status = rules_.Check(home_ + path);
    EXPECT_EQ(ReasonOf(status), "PATH_NOT_ALLOWED") << path;
    EXPECT_THAT(std::string(status.message()), HasSubstr("/more; --data_roots"));
  }
  EXPECT_FALSE(rules_.Check("/etc/passwd").ok());
  EXPECT_FALSE(rules_.Check("etc/passwd").ok()) << "relative to the process's folder";
}

TEST_F(PathRulesTest, RefusesDataFoldersWithALinkOutOfTheFolders) {
  v1::DataSpec data;
  data.mutable_text()->set_path(home_ + "/data/mnist");
  EXPECT_TRUE(rules_.CheckData(data).ok());
  data.mutable_text()->set_path(home_ + "/data");
  EXPECT_EQ(ReasonOf(rules_.CheckData(data)), "PATH_NOT_ALLOWED");
}

TEST_F(PathRulesTest, FaultsNameTheFieldsOfTheSpec) {
  v1::JobSpec spec;
  spec.mutable_model()->mutable_onnx()->set_path("/etc/model.onnx");
  (*spec.mutable_data()->mutable_npy()->mutable_inputs())["x"] = "/etc/x.npy";
  (*spec.mutable_data()->mutable_npy()->mutable_inputs())["y"] = home_ + "/data/y.npy";
  spec.mutable_checkpoint()->set_resume_from("/etc/step-7");
  EXPECT_THAT(rules_.FaultsOf(spec),
              ElementsAre(Field(&FieldFault::field, "model.onnx.path"),
                          Field(&FieldFault::field, "data.npy.inputs.x"),
                          Field(&FieldFault::field, "checkpoint.resume_from")));
  spec.Clear();
  spec.mutable_checkpoint()->set_resume_from("net-7@100");
  EXPECT_THAT(rules_.FaultsOf(spec), IsEmpty()) << "a checkpoint of a job here is not a path";
}

// Returns a data section with a path in each field that holds one.
v1::DataSpec EveryPathOf(int source) {
  v1::DataSpec data;
  switch (source) {
    case v1::DataSpec::kImages:
      data.mutable_images()->set_path("a");
      data.mutable_images()->set_list("b");
      data.mutable_images()->set_eval_path("c");
      data.mutable_images()->set_eval_list("d");
      break;
    case v1::DataSpec::kTfrecord:
      data.mutable_tfrecord()->set_path("a*");
      data.mutable_tfrecord()->set_eval_path("b?");
      break;
    case v1::DataSpec::kTar:
      data.mutable_tar()->set_path("a-{000..146}.tar");
      data.mutable_tar()->set_eval_path("b");
      break;
    case v1::DataSpec::kNpz:
      data.mutable_npz()->set_path("a");
      break;
    default:
      data.mutable_csv()->set_path("a");
      data.mutable_csv()->set_eval_path("b");
      (*data.mutable_csv()->mutable_inputs())["x"].mutable_vocabulary()->set_path("c");
  }
  return data;
}

TEST_F(PathRulesTest, KnowsThePathsOfEachSourceAndOfMixtures) {
  v1::JobSpec spec;
  std::vector<std::string> expected;
  const auto add = [&](int source, const std::vector<std::string>& fields) {
    v1::MixturePart& part = *spec.mutable_data()->mutable_mixture()->add_parts();
    *part.mutable_data() = EveryPathOf(source);
    for (const std::string& field : fields) {
      expected.push_back(absl::StrCat("data.mixture.parts[", spec.data().mixture().parts_size() - 1,
                                      "].data.", field));
    }
  };
  add(v1::DataSpec::kImages,
      {"images.path", "images.list", "images.eval_path", "images.eval_list"});
  add(v1::DataSpec::kTfrecord, {"tfrecord.path", "tfrecord.eval_path"});
  add(v1::DataSpec::kTar, {"tar.path", "tar.eval_path"});
  add(v1::DataSpec::kNpz, {"npz.path"});
  add(v1::DataSpec::kCsv, {"csv.path", "csv.eval_path", "csv.inputs.x.vocabulary.path"});

  MakePathsAbsolute(spec, "/elsewhere");
  std::vector<std::string> fields;
  for (const FieldFault& fault : rules_.FaultsOf(spec)) fields.push_back(fault.field);
  EXPECT_EQ(fields, expected);
  EXPECT_EQ(spec.data().mixture().parts(1).data().tfrecord().path(), "/elsewhere/a*");
  EXPECT_EQ(spec.data().mixture().parts(2).data().tar().path(), "/elsewhere/a-{000..146}.tar");
}

TEST_F(PathRulesTest, NoMatchOfAPatternCanLeaveTheFolders) {
  const auto allows = [&](const std::string& pattern) {
    v1::DataSpec data;
    data.mutable_tar()->set_path(home_ + pattern);
    return rules_.CheckData(data).ok();
  };
  for (const char* pattern : {"/data/*.tar", "/data/*/x-{000..146}.tar", "/data/{a,b}.{tar,tgz}",
                              "/data/a?/{train,test}/*", "/data/mnist/{.a,b.}"}) {
    EXPECT_TRUE(allows(pattern)) << pattern;
  }
  for (const char* pattern :
       {"/*/x.tar", "/dat*/x.tar", "/data/*/../../secret", "/data/{a,../..}/secret",
        "/data/{..,a}/x", "/data/.{.,a}/x", "/data/{a,b/../../x}", "/data/{a,b", "/data/*/a}/../{b",
        "/{data,more}/x"}) {
    EXPECT_FALSE(allows(pattern)) << pattern;
  }
  const auto unlimited = PathRules::Parse("");
  v1::DataSpec data;
  data.mutable_tar()->set_path("/data/{a,../..}/x");
  EXPECT_TRUE(unlimited->CheckData(data).ok());
}

// The folders are allowed, but their files are links to files elsewhere.
TEST_F(PathRulesTest, RefusesLinksOutOfTheFoldersInDataAndCheckpoints) {
  for (const char* step : {"/data/step-00000007", "/data/step-00000009"}) {
    fs::create_directory(home_ + step);
    std::ofstream(home_ + step + "/manifest.json") << "{}";
  }
  fs::create_symlink(home_ + "/secret",
                     home_ + "/data/step-00000007/model-00001-of-00001.safetensors");
  fs::create_symlink(home_ + "/data/mnist/images",
                     home_ + "/data/step-00000009/model-00001-of-00001.safetensors");
  fs::create_symlink("../secret", home_ + "/data/relative");
  fs::create_directory_symlink(home_ + "/database", home_ + "/data/folder");

  v1::JobSpec spec;
  spec.mutable_checkpoint()->set_resume_from(home_ + "/data/step-00000007");
  spec.mutable_data()->mutable_text()->set_path(home_ + "/data/folder");
  spec.mutable_model()->mutable_onnx()->set_path(home_ + "/data/relative");
  EXPECT_THAT(rules_.FaultsOf(spec),
              ElementsAre(Field(&FieldFault::field, "model.onnx.path"),
                          Field(&FieldFault::field, "data.text.path"),
                          Field(&FieldFault::field, "checkpoint.resume_from")));
  spec.Clear();
  spec.mutable_checkpoint()->set_resume_from(home_ + "/data/step-00000009");
  spec.mutable_data()->mutable_text()->set_path(home_ + "/data/mnist");
  EXPECT_THAT(rules_.FaultsOf(spec), IsEmpty()) << "links within the folders are allowed";
}

TEST(PathsTest, MakesRelativePathsAbsoluteButNotNamesOfJobs) {
  v1::JobSpec spec;
  spec.mutable_model()->mutable_onnx()->set_path("./model.onnx");
  (*spec.mutable_data()->mutable_npy()->mutable_inputs())["x"] = "../x.npy";
  (*spec.mutable_data()->mutable_npy()->mutable_inputs())["y"] = "/data/y.npy";
  spec.mutable_checkpoint()->set_resume_from("runs/step-00000001");
  EXPECT_TRUE(MakePathsAbsolute(spec, "/home/me"));
  EXPECT_EQ(spec.model().onnx().path(), "/home/me/model.onnx");
  EXPECT_EQ(spec.data().npy().inputs().at("x"), "/home/x.npy");
  EXPECT_EQ(spec.data().npy().inputs().at("y"), "/data/y.npy");
  EXPECT_EQ(spec.checkpoint().resume_from(), "/home/me/runs/step-00000001");
  EXPECT_FALSE(MakePathsAbsolute(spec, "/elsewhere"));

  v1::JobSpec other;
  other.mutable_checkpoint()->set_resume_from("char-gpt-7@100");
  EXPECT_FALSE(MakePathsAbsolute(other, "/home/me"));
  EXPECT_EQ(other.ByteSizeLong(), other.checkpoint().ByteSizeLong() + 2) << "nothing was added";
}

TEST_F(PathRulesTest, WithoutFoldersEverythingIsAllowedAndAFolderMustExist) {
  const auto any = PathRules::Parse("");
  ASSERT_TRUE(any.ok());
  EXPECT_TRUE(any->Check("/etc/passwd").ok());
  EXPECT_THAT(std::string(PathRules::Parse(home_ + "/nowhere").status().message()),
              HasSubstr("nowhere' is not a folder"));
  EXPECT_FALSE(PathRules::Parse(home_ + "/secret").ok());
}

}  // namespace
}  // namespace muster::path_rules_test
