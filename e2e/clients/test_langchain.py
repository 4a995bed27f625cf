"""langchain-tests with langchain-openai. Tools that a test offers are demanded: the small model calls none."""

import os

from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests


class Demanding(ChatOpenAI):
    """Sends `tool_choice: required` with tools unless the test chooses."""

    def bind_tools(self, tools, *, tool_choice=None, **kwargs):
        return super().bind_tools(tools, tool_choice=tool_choice or "any", **kwargs)


class TestChat(ChatModelIntegrationTests):
    @property
    def chat_model_class(self):
        return Demanding

    @property
    def chat_model_params(self):
        return {
            "model": os.environ["INFLIGHT_MODEL"],
            "base_url": f"{os.environ['INFLIGHT_URL']}/v1",
            "api_key": "none",
            "timeout": 300,
            "stream_usage": True,
        }

    @property
    def supports_json_mode(self):
        return True

    @property
    def model_override_value(self):
        return os.environ["INFLIGHT_MODEL"]
