"""Models of the package transformers, made from configurations with a vocabulary of 60, width 32 and two layers."""

from samples import Case, SAMPLES, classes, images, padding_mask, tokens, without_dropout
import torch
from torch import nn
import transformers

VOCABULARY = 60
LENGTH = 10


class _OfTokens(nn.Module):
    """Computes the logits for tokens and their mask."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask).logits


class _WithLabels(nn.Module):
    """Computes the loss that the model itself computes."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, labels):
        return self.model(input_ids=input_ids, attention_mask=attention_mask, labels=labels).loss


class _OfOneInput(nn.Module):
    """Computes the logits for an image or a sound."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input):
        return self.model(input).logits


class _Translation(nn.Module):
    """Computes the logits for a decoder's tokens, given an encoder's tokens."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, decoder_input_ids):
        return self.model(input_ids=input_ids, decoder_input_ids=decoder_input_ids, use_cache=False).logits


class _Contrast(nn.Module):
    """Computes CLIP's loss for pairs of images and texts."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, pixel_values):
        return self.model(input_ids=input_ids, pixel_values=pixel_values, return_loss=True).loss


def _undropped(settings):
    """Returns the configuration with all dropout rates zero. Many models read the rates while they run."""
    for name, value in vars(settings).items():
        if isinstance(value, float) and ("drop" in name or name.startswith("mask_")):
            setattr(settings, name, 0.0)
    settings.use_cache = False
    return settings


def _sizes(**more):
    return {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 64, "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1,
            "eos_token_id": 1} | more


def _text_inputs():
    mask = padding_mask(LENGTH)
    return {"input_ids": tokens(LENGTH, VOCABULARY) * mask, "attention_mask": mask}


def _classifier(model):
    return Case(_OfTokens(without_dropout(model)), _text_inputs(), classes(5))


def _language_model(model):
    return Case(_OfTokens(without_dropout(model)), _text_inputs(), tokens(LENGTH, VOCABULARY))


def _translation(model):
    return Case(_Translation(without_dropout(model)),
                {"input_ids": tokens(LENGTH, VOCABULARY), "decoder_input_ids": tokens(6, VOCABULARY)},
                tokens(6, VOCABULARY))


def bert():
    settings = _undropped(transformers.BertConfig(**_sizes(num_labels=5)))
    model = transformers.BertForSequenceClassification(settings)
    return Case(_WithLabels(without_dropout(model)), _text_inputs() | {"labels": classes(5)}, outputs=("loss",))


def roberta():
    return _language_model(transformers.RobertaForMaskedLM(_undropped(transformers.RobertaConfig(**_sizes(max_position_embeddings=34)))))


def distilbert():
    settings = transformers.DistilBertConfig(vocab_size=VOCABULARY, dim=32, n_layers=2, n_heads=4, hidden_dim=64,
                                             max_position_embeddings=32, num_labels=5)
    return _classifier(transformers.DistilBertForSequenceClassification(_undropped(settings)))


def albert():
    settings = transformers.AlbertConfig(**_sizes(embedding_size=16, num_labels=5))
    return _classifier(transformers.AlbertForSequenceClassification(_undropped(settings)))


def gpt2():
    settings = transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=32, n_embd=32, n_layer=2, n_head=4,
                                       bos_token_id=1, eos_token_id=1)
    return _language_model(transformers.GPT2LMHeadModel(_undropped(settings)))


def gpt_neo():
    settings = transformers.GPTNeoConfig(vocab_size=VOCABULARY, max_position_embeddings=32, hidden_size=32, num_layers=2,
                                         attention_types=[[["global", "local"], 1]], num_heads=4, intermediate_size=64,
                                         window_size=4, bos_token_id=1, eos_token_id=1)
    return _language_model(transformers.GPTNeoForCausalLM(_undropped(settings)))


def opt():
    settings = transformers.OPTConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, ffn_dim=64,
                                      max_position_embeddings=32, num_attention_heads=4, word_embed_proj_dim=32,
                                      pad_token_id=0, bos_token_id=1, eos_token_id=1)
    return _language_model(transformers.OPTForCausalLM(_undropped(settings)))


def llama():
    settings = transformers.LlamaConfig(**_sizes(num_key_value_heads=2))
    return _language_model(transformers.LlamaForCausalLM(_undropped(settings)))


def mistral():
    settings = transformers.MistralConfig(**_sizes(num_key_value_heads=2, sliding_window=4))
    return _language_model(transformers.MistralForCausalLM(_undropped(settings)))


def t5():
    # The dynamo exporter of torch 2.15 fails on a view of the output of this model's fused attention.
    settings = transformers.T5Config(attn_implementation="eager", vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
                                     relative_attention_num_buckets=8, relative_attention_max_distance=16,
                                     pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)
    return _translation(transformers.T5ForConditionalGeneration(_undropped(settings)))


def bart():
    settings = transformers.BartConfig(vocab_size=VOCABULARY, max_position_embeddings=32, encoder_layers=2,
                                       encoder_ffn_dim=64, encoder_attention_heads=4, decoder_layers=2,
                                       decoder_ffn_dim=64, decoder_attention_heads=4, d_model=32, pad_token_id=0,
                                       bos_token_id=1, eos_token_id=1, decoder_start_token_id=1, forced_eos_token_id=1)
    return _translation(transformers.BartForConditionalGeneration(_undropped(settings)))


def deit():
    settings = transformers.DeiTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
                                       image_size=32, patch_size=8, num_labels=10)
    model = transformers.DeiTForImageClassification(_undropped(settings))
    return Case(_OfOneInput(without_dropout(model)), images(32), classes())


def clip():
    text = _sizes(projection_dim=16)
    vision = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
              "image_size": 32, "patch_size": 8, "projection_dim": 16}
    model = transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16))
    return Case(_Contrast(without_dropout(model)),
                {"input_ids": tokens(LENGTH, VOCABULARY)} | images(32, name="pixel_values"), outputs=("loss",))


def wav2vec2():
    settings = transformers.Wav2Vec2Config(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        conv_dim=(16, 16, 16), conv_stride=(5, 2, 2), conv_kernel=(10, 3, 3), num_feat_extract_layers=3,
        num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4, classifier_proj_size=16, num_labels=5,
        apply_spec_augment=False)
    model = transformers.Wav2Vec2ForSequenceClassification(_undropped(settings))
    return Case(_OfOneInput(without_dropout(model)), {"input": torch.randn(SAMPLES, 400)}, classes(5))


class _Speech(nn.Module):
    """Computes the logits for a decoder's tokens, given a spectrogram."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_features, decoder_input_ids):
        return self.model(input_features=input_features, decoder_input_ids=decoder_input_ids, use_cache=False).logits


def whisper():
    settings = transformers.WhisperConfig(
        vocab_size=VOCABULARY, num_mel_bins=16, encoder_layers=2, encoder_attention_heads=4, decoder_layers=2,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, d_model=32, max_source_positions=20,
        max_target_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=1, decoder_start_token_id=1)
    model = transformers.WhisperForConditionalGeneration(_undropped(settings))
    return Case(_Speech(without_dropout(model)),
                {"input_features": torch.randn(SAMPLES, 16, 40), "decoder_input_ids": tokens(6, VOCABULARY)},
                tokens(6, VOCABULARY))
