"""langchain-tests: LangChain's standard tests of chat models and embeddings, with langchain-openai."""

import os

from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langchain_tests.integration_tests import ChatModelIntegrationTests, EmbeddingsIntegrationTests

SERVER = {"base_url": f"{os.environ['INFLIGHT_URL']}/v1", "api_key": "none", "model": os.environ["INFLIGHT_MODEL"]}

STEADY = {"frequency_penalty": 1, "model_kwargs": {"parallel_tool_calls": False}}
"""Keeps the small model from repeating itself until its answers are too long."""


class StrictChat(ChatOpenAI):
    """Tools are strict: where their schemas permit more arguments, the small model adds some."""

    def bind_tools(self, tools, **arguments):
        return super().bind_tools(tools, **{"strict": True, **arguments})


class TestChat(ChatModelIntegrationTests):
    @property
    def chat_model_class(self):
        return StrictChat

    @property
    def chat_model_params(self):
        return {**SERVER, **STEADY, "temperature": 0, "max_tokens": 128, "max_retries": 0, "stream_usage": True}

    @property
    def has_tool_choice(self):
        return True

    @property
    def structured_output_kwargs(self):
        return {"strict": True}

    @property
    def supports_json_mode(self):
        return True


class TestEmbeddings(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self):
        return OpenAIEmbeddings

    @property
    def embedding_model_params(self):
        # Texts are sent as they are: the tokens of OpenAI's models mean something else here.
        return {**SERVER, "check_embedding_ctx_length": False}
