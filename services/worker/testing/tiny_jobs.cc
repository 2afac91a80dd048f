#include "services/worker/testing/tiny_jobs.h"

#include <fstream>
#include <string>

#include "lib/graph/zoo/zoo.h"

namespace muster {

FakePs::Options LinearJob(int workers) {
  FakePs::Options options;
  v1::JobSpec& spec = options.spec;
  spec.mutable_model()->mutable_zoo()->set_name("linear");
  v1::LinearData* line = spec.mutable_data()->mutable_linear();
  line->set_slope(3);
  line->set_intercept(-0.5);
  line->set_samples(512);
  spec.mutable_data()->set_batch_size(32);
  spec.mutable_data()->set_seed(7);
  spec.mutable_training()->mutable_optimizer()->mutable_sgd()->set_learning_rate(0.3);
  spec.mutable_training()->set_seed(1);
  options.graph = BuildModel(spec.model()).value();
  options.workers = workers;
  return options;
}

FakePs::Options TextJob(const std::string& path, int workers) {
  std::ofstream file(path, std::ios::binary);
  for (int i = 0; i < 64 * 1024; ++i) file.put(static_cast<char>('a' + i * i % 23));
  file.close();

  FakePs::Options options;
  v1::JobSpec& spec = options.spec;
  spec.mutable_model()->mutable_zoo()->set_name("gpt");
  auto& arguments = *spec.mutable_model()->mutable_zoo()->mutable_args()->mutable_fields();
  arguments["layers"].set_number_value(1);
  arguments["heads"].set_number_value(2);
  arguments["channels"].set_number_value(16);
  arguments["context"].set_number_value(16);
  spec.mutable_data()->mutable_text()->set_path(path);
  spec.mutable_data()->mutable_text()->set_holdout(0.1);
  spec.mutable_data()->set_batch_size(7);  // uneven over devices and workers
  spec.mutable_training()->mutable_optimizer()->mutable_sgd()->set_learning_rate(0.1);
  spec.mutable_training()->set_evaluate_every_steps(4);
  options.graph = BuildModel(spec.model()).value();
  options.workers = workers;
  return options;
}

FakePs::Options ProgramJob(int workers) {
  FakePs::Options options;
  v1::JobSpec& spec = options.spec;
  spec.set_name("line");
  spec.mutable_model()->mutable_external()->set_path("line.safetensors");
  spec.mutable_data()->mutable_external();
  spec.mutable_data()->set_batch_size(32);
  spec.mutable_data()->set_seed(7);
  v1::TrainingSpec& training = *spec.mutable_training();
  training.mutable_optimizer()->mutable_sgd()->set_learning_rate(0.3);
  training.add_parameter_groups()->add_match("frozen");
  training.mutable_parameter_groups(0)->set_frozen(true);
  for (const char* name : {"w", "frozen", "b"}) {
    v1::Parameter* parameter = options.graph.add_parameters();
    parameter->set_name(name);
    parameter->add_shape(name == std::string("frozen") ? 3 : 1);
    parameter->mutable_initializer()->set_normal(1);
  }
  options.workers = workers;
  return options;
}

}  // namespace muster
