"""Models: where their files are, their tokenizer, their configuration, their weights and their forward pass.

For the API process, without torch:

- `source.resolve(model, revision) -> ModelFiles`; `source.ModelSourceError` when there is nothing to load.
- `tokenizer.load_tokenizer(files) -> Tokenizer` and `detokenizer.IncrementalDetokenizer`.

For the engine process:

- `config.load_model_config(files) -> DecoderConfig`; `config.UnsupportedModelError`.
- `llama.LlamaModel`, filled from `weights.open_weights(files, config)`; `linear` has its products with plain and with
  quantized weights.
- for every other architecture `transformers_config.load_transformers_config(files) -> TransformersConfig` and
  `transformers_model.TransformersModel`.
"""
