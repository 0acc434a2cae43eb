"""`POST /tokenize` and `/detokenize`. Upstream twin: `vllm/entrypoints/serve/tokenize/api_router.py`."""

from __future__ import annotations

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response

from mini_vllm.entrypoints.openai.utils import ERRORS, respond, validate_json_request
from mini_vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest, TokenizeRequest
from mini_vllm.entrypoints.utils import with_cancellation

router = APIRouter()
_RESPONSES = {status: said for status, said in ERRORS.items() if status != 200}


@router.post("/tokenize", dependencies=[Depends(validate_json_request)], responses=_RESPONSES)
@with_cancellation
async def tokenize(request: TokenizeRequest, raw_request: Request) -> Response:
    """The ids of a text or of a conversation."""
    return respond(await raw_request.app.state.openai_serving_tokenization.create_tokenize(request))


@router.post("/detokenize", dependencies=[Depends(validate_json_request)], responses=_RESPONSES)
@with_cancellation
async def detokenize(request: DetokenizeRequest, raw_request: Request) -> Response:
    """The text of ids."""
    return respond(await raw_request.app.state.openai_serving_tokenization.create_detokenize(request))


def attach_router(app: FastAPI) -> None:
    """Add the routes; `/tokenizer_info` where the command line asks for it."""
    app.include_router(router)
    if app.state.args.enable_tokenizer_info_endpoint:

        @app.get("/tokenizer_info")
        async def get_tokenizer_info(raw_request: Request) -> Response:
            """What the tokenizer's files say."""
            serving = raw_request.app.state.openai_serving_tokenization
            return JSONResponse(serving.get_tokenizer_info().model_dump())
